"""The two ways in which launches are made: by the C extension, and through ctypes."""

from __future__ import annotations

import pytest
from recording_gpu import FakeGpu

from genkern.runtime.launch import launcher


@pytest.fixture(params=["native", "ctypes"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which launches are made by the C extension, or through ctypes."""
    if request.param == "ctypes":
        monkeypatch.setattr(launcher, "_native", None)
    elif launcher._native is None:
        pytest.skip("the C extension was not built: there is no compiler")
    return FakeGpu()
