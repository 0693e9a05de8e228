"""Tests of genkern/journal/run_folder.py and genkern/journal/file_lock.py: whose folder it is, the kernel knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import environment

from genkern.errors import OutputError
from genkern.journal.file_lock import Locked, held, sole_run
from genkern.journal.run_folder import modules_folder, run_folder

HOLDS = """
import sys
from pathlib import Path
from genkern.journal.run_folder import run_folder
with run_folder(Path(sys.argv[1])) as folder:
    (folder / "module.py").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process with a folder of its own, which it leaves at the end of its input."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_folders_come_and_go(hostile_path: Path) -> None:
    """Several runs of one process have one each; each goes with all that is in it, after an error too."""
    parent = hostile_path / "modules"
    with run_folder(parent) as one, run_folder(parent) as two:
        assert one != two
        (one / "below").mkdir()
        (one / "below" / "file").touch()
    assert list(parent.iterdir()) == []
    with pytest.raises(ValueError, match="fails"), run_folder(parent):
        raise ValueError("fails")
    assert list(parent.iterdir()) == []


def test_the_dead_are_cleared_away_and_the_living_are_not(tmp_path: Path) -> None:
    """A killed run's folder goes when the next run starts; that of a run under way stays, and so do kept modules."""
    (tmp_path / "gemm_kept.py").touch()
    (tmp_path / "run-elsewhere-5-abc").mkdir()
    (tmp_path / "run-elsewhere-5-abc.lock").touch()
    living, its_folder = holder(tmp_path)
    dead, left = holder(tmp_path)
    dead.kill()
    dead.wait()
    assert (left / "module.py").exists()
    with run_folder(tmp_path):
        assert not left.exists()
        assert (its_folder / "module.py").exists()
    living.communicate("")
    assert living.returncode == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"gemm_kept.py", "run-elsewhere-5-abc", "run-elsewhere-5-abc.lock"}


def test_a_lock_whose_folder_was_never_made_goes_too(tmp_path: Path) -> None:
    """A run may be killed between the two; and folders of another kind are not this kind's to remove."""
    living, _ = holder(tmp_path)
    dead, left = holder(tmp_path)
    for process in (living, dead):
        process.kill()
        process.wait()
    (left / "module.py").unlink()
    left.rmdir()
    with run_folder(tmp_path, "other") as other:
        assert other.stat().st_mode & 0o077 == 0
        assert len(list(tmp_path.iterdir())) == 3 + 2
    with run_folder(tmp_path):
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_made(tmp_path: Path) -> None:
    """One error that names it and the option."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="--cache_dir"), run_folder(tmp_path / "file" / "modules"):
        pass


def test_a_cache_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that others have filled may be: modules go below TMPDIR, with or without a folder for them there."""
    cache, elsewhere = tmp_path / "cache", tmp_path / "tmp"
    cache.mkdir()
    elsewhere.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", cache], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("this user may not mount a file system")
    monkeypatch.setattr("tempfile.tempdir", str(elsewhere))
    try:
        with modules_folder(cache) as folder:
            (folder / "module.py").touch()
            assert folder.parent == elsewhere
        with pytest.raises(OutputError), run_folder(cache / "modules"):
            pass
    finally:
        subprocess.run(["umount", "-l", cache], check=True)
    assert list(elsewhere.iterdir()) == []
    with modules_folder(cache) as folder:
        assert folder.parent == cache / "modules"
    with modules_folder(tmp_path / "new") as folder:
        assert folder.parent == tmp_path / "new" / "modules"


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    """The second is told; afterwards the file is gone and the lock free."""
    path = tmp_path / "lock"
    with held(path):
        with pytest.raises(Locked), held(path):
            pass
        assert path.exists()
    assert not path.exists()
    with held(path):
        pass


def test_a_lock_file_that_was_replaced_counts_anew(tmp_path: Path) -> None:
    """Whoever got the lock of a file that its last holder removed takes the one that is there now."""
    path = tmp_path / "lock"
    with held(path):
        os.unlink(path)
        with held(path):
            assert path.exists()


def test_one_run_on_a_results_file(tmp_path: Path) -> None:
    """Its folder is made; an error inside comes out as it is."""
    path = str(tmp_path / "new" / "r.yaml")
    with sole_run(path):
        with pytest.raises(OutputError, match="another run is writing"), sole_run(path):
            pass
        with sole_run(str(tmp_path / "new" / "other.yaml")):
            pass
    assert list((tmp_path / "new").iterdir()) == []
    with pytest.raises(FileNotFoundError), sole_run(path):
        raise FileNotFoundError(2, "gone", "other")
