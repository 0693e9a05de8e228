"""One bundle for all tests of the runtime."""

from __future__ import annotations

from pathlib import Path

import pytest
from launch_ways import gpu as gpu
from recording_gpu import FakeGpu
from small_bundle import pack_here, rows

from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm


@pytest.fixture(scope="session")
def bundle_path(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    """A bundle of `rows`."""
    return pack_here(tmp_path_factory.mktemp("bundle"), rows(), cache_dir)


@pytest.fixture(scope="session")
def bundle(bundle_path: str) -> Bundle:
    """The same, read."""
    return read_bundle(bundle_path)


@pytest.fixture
def gemm(bundle: Bundle, gpu: FakeGpu) -> Gemm:
    return Gemm("a16w16", Context(lambda op: [bundle], lambda index: gpu))
