"""One bundle for all tests of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_gpu import FakeGpu
from small_bundle import pack_here, rows

from genkern.runtime.bundle import Bundle, read_bundle
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm
from genkern.runtime.launch import launcher


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    """A bundle of `rows`."""
    return pack_here(tmp_path_factory.mktemp("bundle"), rows(), cache_dir)


@pytest.fixture(scope="session")
def bundle(bundle_path: str) -> Bundle:
    """The same, read."""
    return read_bundle(bundle_path)


@pytest.fixture(params=["native", "ctypes"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU on which launches are made by the C extension, or through ctypes."""
    if request.param == "ctypes":
        monkeypatch.setattr(launcher, "_native", None)
    elif launcher._native is None:
        pytest.skip("the C extension was not built: there is no compiler")
    return FakeGpu()


@pytest.fixture
def gemm(bundle: Bundle, gpu: FakeGpu) -> Gemm:
    return Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
