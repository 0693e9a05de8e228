"""What the tests of rocprofv3 and rocprof start from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rocprof_session import install_profilers, make_session

from genkern.profiling.rocm.rocprof import RocprofV3Profiler
from genkern.timing.session import Session


@pytest.fixture
def profilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake rocprofv3 and rocprof are the ones on PATH."""
    install_profilers(tmp_path, monkeypatch)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tells the fake device what to do."""
    return lambda **values: monkeypatch.setenv("FAKE_ROCPROF", json.dumps(values))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return make_session(tmp_path)


@pytest.fixture
def profiler(tmp_path: Path) -> RocprofV3Profiler:
    """rocprofv3 as found on PATH, with limits for tests."""
    return RocprofV3Profiler(harness=(sys.executable, str(tmp_path / "harness.py")), edge_s=10.0, grace_s=2.0)
