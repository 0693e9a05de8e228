"""Searches that leave something out, through a tuner: what of it ends how, and what the winner says of the rest."""

from __future__ import annotations

from pathlib import Path

from test_tuner_outcomes import KEPT, PROBLEM, SPACE, Scripted, tuned, workshop

from genkern.farm.workshop import Workshop
from genkern.gemm.records import Outcome
from genkern.journal.facts import read_journal

__all__ = ["workshop"]


def test_patience_ends_a_search(workshop: Workshop, tmp_path: Path) -> None:
    """Two binaries that bring nothing faster are enough: what comes behind them is predicted_out, and counted."""
    whole = tuned(workshop, tmp_path / "whole", Scripted({}, {}, set()))
    assert whole.outcomes[Outcome.PREDICTED_OUT] == 0
    script = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "j", script, search="patience:2")
    screened = [name for name, found in report.candidates.items() if found.outcome is Outcome.MEASURED]
    assert sum(report.outcomes.values()) == SPACE.size
    assert report.outcomes[Outcome.PREDICTED_OUT] == len(KEPT) - len(screened) > 0
    assert report.winner is not None
    assert min(KEPT.index(name) for name in screened) == KEPT.index(report.winner.config.name)
    # The winner says how much that was, in the journal too.
    assert whole.winner is not None
    assert (whole.winner.searched_share, whole.winner.expected_loss) == (1.0, 0.0)
    assert report.winner.searched_share is not None
    assert 0 < report.winner.searched_share < 1
    assert report.winner.expected_loss is None
    assert read_journal(tmp_path / "j").of(PROBLEM).winner == report.winner
    # One that raced before is measured, however little it promises, and counts as the best so far.
    again = tuned(workshop, tmp_path / "k", Scripted({}, {}, set()), incumbent=whole.winner.config, search="patience:1")
    assert again.winner is not None
    assert again.winner.config == whole.winner.config
