"""Tests of what becomes of a finalist that nobody could check."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from test_tune import DEEP, PLAIN, Verdicts, choose, final

from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.timing.session import Session


def test_what_nobody_could_check_is_no_winner(tmp_path: Path) -> None:
    """For want of memory, say: neither wrong nor crowned, and the size says why; what is proved right wins instead."""

    class Starved(Verdicts):
        def check(self, session: Session | None, candidate: Candidate) -> Check:
            made = super().check(session, candidate)
            return (
                made if made.passed else replace(made, method=NOT_CHECKED, message="no memory", lost=Outcome.UNCHECKED)
            )

    finals = [final(PLAIN.name, 100), final(DEEP.name, 105)]
    winner, report = choose(tmp_path / "one", finals, Starved(PLAIN))
    assert winner is not None
    assert winner.config == DEEP
    assert report.candidates[PLAIN.name].outcome is Outcome.UNCHECKED
    winner, report = choose(tmp_path / "none", finals, Starved(PLAIN, DEEP))
    assert winner is None
    assert {m.outcome for m in report.candidates.values()} == {Outcome.UNCHECKED}
    assert report.message == "no finalist was proved right, 2 of them for lack of memory: no memory"
