"""Searches that leave something out, through a tuner: what of it ends how, and what the winner says of the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_tuner_outcomes import GPU, KEPT, PROBLEM, SPACE, Killed, Scripted, tuned, workshop

from genkern.compile.binary_groups import binary_group
from genkern.compile.build_environment import BuildEnvironment
from genkern.gemm.config import Config
from genkern.gemm.records import Outcome
from genkern.journal.facts import read_journal
from genkern.search.limit import Limit
from genkern.search.strategies import chosen_strategy
from genkern.tuning.replay import replay_decisions

__all__ = ["workshop"]


@pytest.mark.parametrize("lives", [10**6, 4])
def test_a_budget_of_binaries_ends_a_search(workshop: BuildEnvironment, tmp_path: Path, lives: int) -> None:
    """The best so far is timed again, checked and written; a run that is resumed measures no more binaries, and the
    journal decides it once more.
    """
    limit = Limit(binaries=3, said="3")
    tuned(workshop, tmp_path / "cached", Scripted({}, {}, set()), search="predicted:9")
    if lives < 9:
        with pytest.raises(Killed):
            tuned(workshop, tmp_path / "j", Scripted({}, {}, set(), lives), limit=limit)
    script = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "j", script, limit=limit)
    measured = [Config.parse(name) for name, m in report.candidates.items() if m.outcome is Outcome.MEASURED]
    assert len({binary_group(config) for config in measured}) == 3
    assert report.winner is not None
    assert report.winner.config.name == min((config.name for config in measured), key=KEPT.index)
    assert report.winner.check is not None
    assert sum(report.outcomes.values()) == SPACE.size
    assert {m.message for m in report.candidates.values() if m.outcome is Outcome.PREDICTED_OUT} == {
        "the search ended before it (--budget 3)"
    }
    searched = read_journal(tmp_path / "j").of(PROBLEM).searched
    assert searched is not None
    assert searched.most == 3
    assert replay_decisions(chosen_strategy("predicted").make, searched, PROBLEM, GPU) == searched.steps


@pytest.mark.parametrize("incumbent", [None, KEPT[-1]])
def test_a_budget_of_seconds_ends_a_search(workshop: BuildEnvironment, tmp_path: Path, incumbent: str | None) -> None:
    """With a winner all the same, which may be that of an earlier run: it races again whatever the limit."""
    limit = Limit(seconds=1e-6, said="0s")
    raced = Config.parse(incumbent) if incumbent else None
    report = tuned(workshop, tmp_path / "j", Scripted({}, {}, set()), incumbent=raced, limit=limit)
    assert report.winner is not None
    assert 0 < report.outcomes[Outcome.MEASURED] < len(KEPT)
    assert report.outcomes[Outcome.MEASURED] + report.outcomes[Outcome.PREDICTED_OUT] == len(KEPT)
    assert incumbent is None or report.candidates[incumbent].outcome is Outcome.MEASURED


def test_a_strategy_ends_a_search(workshop: BuildEnvironment, tmp_path: Path) -> None:
    """It asks for no more than two binaries: what comes behind them is predicted_out, and counted."""
    whole = tuned(workshop, tmp_path / "whole", Scripted({}, {}, set()))
    assert whole.outcomes[Outcome.PREDICTED_OUT] == 0
    script = Scripted({}, {}, set())
    report = tuned(workshop, tmp_path / "j", script, search="predicted:2")
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
    again = tuned(
        workshop, tmp_path / "k", Scripted({}, {}, set()), incumbent=whole.winner.config, search="predicted:1"
    )
    assert again.winner is not None
    assert again.winner.config == whole.winner.config
