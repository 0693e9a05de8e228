"""The two ways in which launches are made: by the C extension, and through ctypes."""

from __future__ import annotations

import pytest
from recording_gpu import FakeGpu

from genkern.runtime.launch import launcher

# False if there was no compiler when genkern was installed.
HAS_EXTENSION = launcher._native is not None
needs_extension = pytest.mark.skipif(not HAS_EXTENSION, reason="the C extension was not built: there is no compiler")


def is_native() -> bool:
    """Return True if the C extension makes launches now."""
    return launcher._native is not None


def launch_by(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have launches made in this way, "native" or "ctypes", during the test; skip it if that is not possible."""
    if way == "ctypes":
        monkeypatch.setattr(launcher, "_native", None)
    elif not HAS_EXTENSION:
        pytest.skip("the C extension was not built: there is no compiler")


@pytest.fixture(params=["native", "ctypes"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which launches are made by the C extension, or through ctypes."""
    launch_by(request.param, monkeypatch)
    return FakeGpu()
