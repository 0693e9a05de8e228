"""Tests of genkern.compile.pool; tests/compile/test_farm.py has what becomes of the jobs, and of workers that die."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import environment
from processes import WAIT_S, assert_gone, relatives
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec

from genkern.compile.cache import BinaryCache
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.compile.pool import WorkerDiedError, end, submit


def jobs_for(trouble: Path, cache: Path, *names: str) -> list[CompileJob]:
    """One job for each kernel of the module `trouble`."""
    farm = Farm(BinaryCache(cache), target_of("gfx942"), TRITON_VERSION, jobs=1, timeout_s=60.0)
    return [
        CompileJob(farm.key(trouble_spec(name)), str(trouble), trouble_spec(name), farm.target, str(cache), 60.0, None)
        for name in names
    ]


def test_a_killed_worker_is_told(trouble: Path, hostile_path: Path) -> None:
    """A worker that is killed in the middle of a job raises the one error that a farm waits for.

    The signals that this thread takes are what they were, and the pool can be ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(WorkerDiedError):
        submit(*jobs_for(trouble, hostile_path / "cache", "kill_worker"), 2).result()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    end()


def test_the_end_takes_assemblers_along(trouble: Path, tmp_path: Path) -> None:
    """What a compile process has started does not outlive a pool that is ended, however long it would take."""
    path, running = tmp_path / "child.py", tmp_path / "running"
    runs = (
        f"__import__('subprocess').run(['sh', '-c', 'echo $$ > {running}.new; mv {running}.new {running}; sleep 3600'])"
    )
    path.write_text(trouble.read_text().replace("time.sleep(3600)", runs))
    submit(*jobs_for(path, tmp_path / "cache", "hang"), 2)
    deadline = time.monotonic() + WAIT_S
    while not running.exists():
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.02)
    end()
    assembler = Path("/proc", running.read_text().strip())
    while assembler.exists():
        assert time.monotonic() < deadline, "the assembler goes on"
        time.sleep(0.02)


IDLE = """
import os, time
from genkern.compile import pool
with pool.children_ignore_interrupts():
    pool.executor(2).submit(os.getpid).result()
print("idle", flush=True)
time.sleep(600)
"""


def test_workers_without_a_job_end_with_the_driver(tmp_path: Path) -> None:
    """However soon after their start it is killed: they and their trackers would hold its output for minutes."""
    env = environment({"GENKERN_TEST_MARK": str(tmp_path)})
    driver = subprocess.Popen([sys.executable, "-c", IDLE], env=env, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdout.readline() == "idle\n"
    assert len(relatives(tmp_path)) >= 3
    driver.kill()
    driver.wait()
    assert_gone(tmp_path)


def test_nothing_else_imports_it() -> None:
    """All that a run with a warm cache imports leaves joblib alone."""
    program = "import sys, genkern.cli.run; print('joblib' in sys.modules, 'numpy' in sys.modules)"
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "False False\n"


_SPAWNS = """
import multiprocessing, os, sys
sys.path[:] = filter(None, sys.path)
from genkern.compile.pool import leave_current_folder_when_spawning
leave_current_folder_when_spawning()
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=os.getcwd)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


def test_spawned_processes_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    """Dask's nodes, which multiprocessing spawns."""
    for name in ("random", "queue", "runpy", "logging"):
        (tmp_path / f"{name}.py").write_text("open('mark', 'x').close()\nraise ImportError('planted')\n")
    argv = [sys.executable, "-c", _SPAWNS]
    ran = subprocess.run(argv, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not (tmp_path / "mark").exists()
