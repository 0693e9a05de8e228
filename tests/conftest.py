"""Shared fixtures: no test reaches the user's own caches, and tests marked `gpu` run where there is a GPU."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_checks import ForkedChecks
from hypothesis import settings
from interpreted import Interpreter
from long_tests import repeats

from genkern.gemm.gpus import detect_devices

ROOT = Path(__file__).parent.parent
# An sdist cannot hold the links that make two top-level folders part of the package.
for _name in ("profiling", "templates"):
    if not (ROOT / "genkern" / _name).exists():
        with contextlib.suppress(OSError):
            (ROOT / "genkern" / _name).symlink_to(Path("..") / _name)

# Small tensors on a busy machine: threads of NumPy and PyTorch would spin, waiting for one another. Read on import.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

# A loaded machine is no failure; tests of speed measure processor time themselves.
settings.register_profile("genkern", deadline=None, max_examples=repeats(30, 100))
settings.load_profile("genkern")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the GPU tests on a machine without a GPU."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if needing and not detect_devices():
        config.hook.pytest_deselected(items=needing)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


_modules_seen = 0


def pytest_runtest_logstart() -> None:
    """Between two tests: what was collected and imported stays to the end, and no search for garbage need pass it.

    With PyTorch, Triton and thousands of tests one such search takes half a second, and there are hundreds.
    """
    global _modules_seen
    if len(sys.modules) > _modules_seen + 100:
        _modules_seen = len(sys.modules)
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches go to a folder of this run; settings of Triton that the caller happens to have are gone."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("TRITON_", "GENKERN_"))]:
            patch.delenv(name)
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        patch.setenv("GENKERN_CACHE_DIR", str(folder / "genkern"))
        patch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
        # What runs predict for where neither the test nor a file names a GPU.
        patch.setenv("GENKERN_ARCH", "gfx942")
        yield


def _environment() -> dict[str, str]:
    """What tests must leave as it is; a library that is imported for the first time may set some of its own names."""
    own = ("PYTEST_", "KMP_", "TORCHINDUCTOR_", "TRITON_PTXAS_PATH")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


@pytest.fixture(autouse=True)
def _environment_as_before() -> Iterator[None]:
    """A test that leaves the environment changed fails, and not one that comes after it."""
    before, folder = _environment(), tempfile.tempdir
    yield
    after = _environment()
    if (after, tempfile.tempdir) != (before, folder):
        for name in after.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
        changes = {*after.items()} ^ {*before.items()}
        found, tempfile.tempdir = tempfile.tempdir, folder
        pytest.fail(f"the test changes the environment: {changes}, the folder of temporary files: {found}")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache whose binaries are those of the whole run, of other workers too, so that tests share what they compile.

    What else commands keep there is this worker's own.
    """
    folder, base = tmp_path_factory.mktemp("cache"), tmp_path_factory.getbasetemp()
    binaries = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "binaries"
    binaries.mkdir(exist_ok=True)
    (folder / "binaries").symlink_to(binaries)
    return folder


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreter]:
    """One process with Triton's interpreter for all cases of all tests: it takes two seconds to start."""
    with contextlib.closing(Interpreter(tmp_path_factory.mktemp("interpreted"))) as running:
        yield running


@pytest.fixture
def fast_checks(interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check under the interpreter costs a fork, for tests that ask for it; tuning/test_checkers.py has its
    process.
    """
    monkeypatch.setattr("genkern.tuning.checkers.run_supervised", ForkedChecks(interpreter).run)


@pytest.fixture
def hostile_path(tmp_path: Path) -> Path:
    """A folder whose name is hostile to shells and to careless formatting."""
    path = tmp_path / "a 'b' \"c\" $(d) %s {e}"
    path.mkdir()
    return path
