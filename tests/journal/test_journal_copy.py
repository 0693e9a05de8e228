"""Tests of genkern/journal/copy.py: what a forked process adds to the journal, and what it learns from others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from test_journal import CHECK, CRASHED, FINALS, HANGING, OTHER, PROBLEM, SCREENED, START, WINNER, opened

from genkern.gemm.records import Outcome
from genkern.journal.copy import JournalCopy
from genkern.journal.facts import Begun, Compiled, Ended
from genkern.journal.journal import BATCH_FACTS, FactWriter


def fill(journal: FactWriter) -> None:
    """Every kind of fact that a tuner has to tell."""
    journal.add_begun(PROBLEM, Begun(672, 1, 1.5))
    journal.add_unfit(PROBLEM, ["hanging"], HANGING)
    journal.add_compiled(PROBLEM, Compiled(8, 1, 4))
    for name in ("", "innocent"):
        journal.add_screened(PROBLEM, replace(CRASHED, config=name or CRASHED.config))
    journal.add_screened(PROBLEM, SCREENED)
    journal.add_retraction(PROBLEM, ["innocent"])
    journal.add_retimed(PROBLEM, FINALS)
    journal.add_check(PROBLEM, CHECK)
    journal.add_winner(WINNER)
    journal.add_end(PROBLEM, Ended({Outcome.MEASURED: 670, Outcome.CRASHED: 2}, ""))


def test_a_copy_says_what_the_journal_would_have_written(tmp_path: Path) -> None:
    """To the byte, in the same order; and it knows its own facts as the journal knows them."""
    own, others = opened(tmp_path / "own"), opened(tmp_path / "others")
    for journal in (own, others):
        journal.started(START)
    copy = JournalCopy(others, lambda lines, decides: others.take_over(lines, decides=decides))
    fill(own)
    fill(copy)
    copy.flush()
    assert (tmp_path / "others").read_bytes() == (tmp_path / "own").read_bytes()
    assert copy.facts == own.facts
    assert opened(tmp_path / "others").facts == own.facts


def test_little_is_kept_back(tmp_path: Path) -> None:
    """Measurements wait for a flush, but never more than a batch; what decides a problem does not wait, nor do they."""
    journal = opened(tmp_path / "journal")
    journal.started(START)
    sent: list[tuple[int, bool]] = []
    copy = JournalCopy(journal, lambda lines, decides: sent.append((lines.count(b"\n"), decides)))
    for number in range(2 * BATCH_FACTS + 1):
        copy.add_screened(PROBLEM, replace(SCREENED, config=f"config_{number}"))
    assert sent == [(1, False)] * 2
    copy.add_winner(WINNER)
    assert sent[2:] == [(1, False), (1, True)]
    copy.flush()
    assert len(sent) == 4


def test_a_copy_learns_what_others_wrote(tmp_path: Path) -> None:
    """Lines of another process make it know the same, and what it knew of other problems stays."""
    journal = opened(tmp_path / "journal")
    journal.started(START)
    journal.add_screened(OTHER, SCREENED)
    journal.flush()
    lines: list[bytes] = []
    first = JournalCopy(journal, lambda data, decides: lines.append(data))
    second = JournalCopy(opened(tmp_path / "journal"), lambda data, decides: None)
    fill(first)
    first.flush()
    second.read_lines(lines)
    assert second.of(PROBLEM) == first.of(PROBLEM)
    assert second.winners() == [WINNER]
    assert second.of(OTHER).screened == {SCREENED.config: SCREENED}
