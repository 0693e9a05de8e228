"""Tests of genkern/journal/bug_log.py: what a report of a bug needs is on disk, and the user knows where."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import BugError, OutputError
from genkern.journal.bug_log import BugLog

BUG = BugError("KeyError: 'x'", "Traceback: line 3\nKeyError: 'x'\n")


def test_the_log_grows(hostile_path: Path) -> None:
    """Each bug with its size, the command, the versions and the traceback; the line names the log."""
    path = hostile_path / "out" / "r.yaml.bug.log"
    log = BugLog(path, {"triton": "3.7.0", "genkern": "1"}, "genkern -i sizes.yaml")
    lines = [log.append(size, BUG) for size in ("1x2x3", "4x5x6")]
    assert lines[1] == f"4x5x6: a bug in genkern: KeyError: 'x'; {path} has details: please report it"
    entries = path.read_text().split("\n\n")
    assert len(entries) == 3
    assert entries[1].splitlines()[0].endswith("4x5x6")
    assert entries[1].splitlines()[1:] == [
        "genkern -i sizes.yaml",
        "genkern 1, triton 3.7.0",
        "KeyError: 'x'",
        "Traceback: line 3",
        "KeyError: 'x'",
    ]


def test_a_log_that_cannot_be_written_hides_no_bug(tmp_path: Path) -> None:
    """The error names both."""
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"1x2x3: .*KeyError: 'x'"):
        BugLog(tmp_path / "file" / "log", {}, "").append("1x2x3", BUG)
