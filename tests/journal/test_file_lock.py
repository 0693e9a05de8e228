"""Tests of genkern.journal.file_lock: one holder at a time, and none after it is gone."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from genkern.errors import OutputError
from genkern.journal.file_lock import Locked, held, is_held, sole_run


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    """A second holder is turned away; after the first has left, the file is gone and the lock is free."""
    lock = tmp_path / "x.lock"
    with held(lock), pytest.raises(Locked), held(lock):
        pass
    assert not lock.exists()
    with held(lock):
        assert lock.exists()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the last holder removes the file between a second one's open and lock, that one locks the new file."""
    lock, flock = tmp_path / "x.lock", fcntl.flock
    left = [lock]

    def late(file: object, operation: int) -> None:
        if left:
            left.pop().unlink()
        flock(file, operation)  # type: ignore[arg-type]

    monkeypatch.setattr("fcntl.flock", late)
    with held(lock):
        assert lock.exists()
        with pytest.raises(Locked), held(lock):
            pass


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """The kernel drops the lock of a process that is killed, so the file that it left behind keeps nobody out."""
    lock = tmp_path / "x.lock"
    code = (
        f"from genkern.journal.file_lock import held\nwith held({str(lock)!r}):\n print('held', flush=True)\n input()"
    )
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


def test_looking_keeps_nobody_out(tmp_path: Path) -> None:
    """Whether a lock is held can be asked at any time, by anybody, and whoever wants it gets it all the same."""
    lock = tmp_path / "x.lock"
    assert is_held(lock) is False
    assert not lock.exists()
    with held(lock):
        assert is_held(lock) is True
    lock.touch()
    assert is_held(lock) is False
    code = f"from genkern.journal.file_lock import is_held\nprint('x', flush=True)\nwhile True: is_held({str(lock)!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as onlooker:
        try:
            assert onlooker.stdout is not None
            assert onlooker.stdout.readline() == b"x\n"
            for _ in range(2000):
                lock.touch()
                with held(lock):
                    pass
        finally:
            onlooker.kill()


def test_a_file_system_without_locks_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nobody is kept out, and nobody is said to be there or not."""

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with held(tmp_path / "x.lock"):
        assert is_held(tmp_path / "x.lock") is None


def test_two_runs_on_one_results_file(tmp_path: Path) -> None:
    """The second run is told in one line which file is taken."""
    path = str(tmp_path / "tuned.yaml")
    with sole_run(path), pytest.raises(OutputError, match=r"tuned\.yaml"), sole_run(path):
        pass


def test_a_forked_process_holds_nothing(tmp_path: Path) -> None:
    """A driver process that outlives the run for a moment keeps nobody out, and the lock stays with who took it."""
    lock, (read, write) = tmp_path / "x.lock", os.pipe()
    with held(lock):
        if (pid := os.fork()) == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        assert is_held(lock)
    with held(lock):
        pass
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0
