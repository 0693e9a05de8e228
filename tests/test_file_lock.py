"""Tests of genkern.file_lock: one holder at a time, and none after it is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from genkern.errors import OutputError
from genkern.file_lock import Locked, held, sole_run


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second holder is turned away; after the first has left, the file is gone and the lock is free."""
    lock = tmp_path / "x.lock"
    with held(lock), pytest.raises(Locked), held(lock):
        pass
    assert not lock.exists()
    with held(lock):
        assert lock.exists()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel drops the lock of a process that is killed, so the file that it left behind keeps nobody out."""
    lock = tmp_path / "x.lock"
    code = f"from genkern.file_lock import held\nwith held({str(lock)!r}):\n print('held', flush=True)\n input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(Locked), held(lock):
            pass
        holder.kill()
        holder.wait()
    assert lock.exists()
    with held(lock):
        pass


def test_two_runs_on_one_results_file(tmp_path: Path) -> None:
    """The second run is told in one line which file is taken."""
    path = str(tmp_path / "tuned.yaml")
    with sole_run(path), pytest.raises(OutputError, match=r"another run is writing .*tuned\.yaml"), sole_run(path):
        pass
