"""Machines on which processes, threads, memory or files run out: one line, status 2, and no hang."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import Ran, environment
from long_tests import drawn, spread

# Without a GPU the model chooses, so that one kernel is compiled.
SIZE = ("-m", "16", "-n", "512", "-k", "512", "--arch", "sm_90", "--profiler", "predict", "--compile", "--jobs", "2")
# A worker that cannot start says why on standard error; everything else starts.
_NO_WORKER = """
import sys
if any("popen_loky" in word for word in sys.orig_argv):
    raise SystemExit("no worker starts here")
"""


def run_within(folder: Path, limit: Callable[[], object], **env: str) -> Ran:
    """The command in a process of its own, for which `limit` is called before it begins."""
    argv = [sys.executable, "-m", "genkern", *SIZE, "--cache_dir", str(folder / "cache"), "-o", str(folder / "r.yaml")]
    ran = subprocess.run(
        argv,
        cwd=folder,
        env=environment(env),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_workers_that_cannot_start_end_the_run(tmp_path: Path) -> None:
    """Soon, with what they said; not one size after another, nor one config after another."""
    (tmp_path / "sitecustomize.py").write_text(_NO_WORKER)
    started_s = time.monotonic()
    ran = run_within(tmp_path, lambda: None, PYTHONPATH=str(tmp_path))
    assert "no worker starts here" in ran.refusal
    print(f"ended after {time.monotonic() - started_s:.1f} s")
    assert time.monotonic() - started_s < 60
    assert not list((tmp_path / "cache" / "binaries").glob("??/*"))


@pytest.mark.parametrize(("what", "most"), drawn([(resource.RLIMIT_NOFILE, 18), (resource.RLIMIT_AS, 300 * 2**20)], 1))
def test_low_limits_are_one_line(what: int, most: int, tmp_path: Path) -> None:
    """Whatever it is that finds no room; no kernel is blamed."""
    ran = run_within(tmp_path, lambda: resource.setrlimit(what, (most, most)))
    if ran.status == 0:
        pytest.skip("this machine needs less")
    assert ran.refusal
    assert "a bug in genkern" not in ran.err
    assert not list((tmp_path / "cache" / "binaries").glob("??/*"))


@contextmanager
def few_tasks(most: int) -> Iterator[Callable[[], object]]:
    """A limit of processes and threads, for a process that calls it before it begins; skips the test without cgroups.

    A limit of the user (RLIMIT_NPROC) does not hold for root.
    """
    parent = next((path for path in map(Path, ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")) if path.is_dir()), None)
    if parent is None:
        pytest.skip("there are no cgroups")
    group = parent / f"genkern-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("this user may make no cgroup")
    try:
        (group / "pids.max").write_text(str(most))
        (group / "cgroup.procs").read_text()
    except OSError:
        group.rmdir()
        pytest.skip("this cgroup has no limit of processes")
    try:
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        for _ in range(200):
            if not (group / "cgroup.procs").read_text():
                break
            time.sleep(0.05)
        group.rmdir()


@pytest.mark.parametrize("most", spread([7, 9], 2))
def test_few_processes_are_one_line(most: int, tmp_path: Path) -> None:
    """Neither a hang nor a bug of genkern's, be it a process or a thread that is refused."""
    with few_tasks(most) as limit:
        ran = run_within(tmp_path, limit)
    if ran.status == 0:
        pytest.skip("this machine needs fewer")
    assert ran.refusal
    assert "a bug in genkern" not in ran.err
