"""Tests of genkern/cli/tuning_pass.py: which journal a pass goes on with."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from rich.console import Console

from genkern.cli.tuning_pass import close_concurrently, open_journal, start_record
from genkern.errors import OutputError
from genkern.gemm.problem import GemmProblem
from genkern.journal.header import UnusableJournal
from genkern.journal.run_files import RunFiles

PROBLEM = GemmProblem(16, 64, 64)


def test_a_pass_goes_on_with_its_own_journal(tmp_path: Path) -> None:
    """One of other orders is another run's; --all keeps it aside, and says so."""
    files, console = RunFiles(str(tmp_path / "r.yaml.order1")), Console(record=True, width=400)
    header = {"order_pass": 1, "sums": "least", "m_weights": []}
    with_start = open_journal(files, header, False, console)
    with_start.started(start_record("genkern", [PROBLEM]))
    with_start.close()
    again = open_journal(files, header, False, console)
    assert [start.problems for start in again.starts] == [(PROBLEM,)]
    again.close()
    with pytest.raises(UnusableJournal, match="sums was 'least', is 'library'"):
        open_journal(files, {**header, "sums": "library"}, False, console)
    anew = open_journal(files, {**header, "sums": "library"}, True, console)
    assert anew.starts == []
    anew.close()
    assert "--all tunes again, and it is kept as " in console.export_text()


def test_what_waits_for_processes_ends_together() -> None:
    """Each waits for the other here; both are done when one has failed."""
    both = threading.Barrier(2, timeout=20.0)
    ended: list[str] = []

    def fails() -> None:
        both.wait()
        raise OutputError("no space left")

    def ends() -> None:
        both.wait()
        ended.append("it")

    with pytest.raises(OutputError, match="no space"):
        close_concurrently(fails, ends)
    assert ended == ["it"]
