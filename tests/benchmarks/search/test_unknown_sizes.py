"""Tests of benchmarks/search/unknown_sizes.py: which sizes a model knows, and what a row of the table says."""

from __future__ import annotations

import pytest
from recorded_runs import journal

from benchmarks.search.unknown_sizes import HEAD, STRATEGIES, cases, row, searched
from genkern.recorded.assumed_costs import assumed_costs_of
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.search.strategies import chosen_strategy
from genkern.tuning.simulation import simulate


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedProblem:
    made = tmp_path_factory.mktemp("recorded")
    journal(made / "r.yaml.journal")
    (problem,) = recorded_problems(str(made / "r.yaml"))
    return problem


def test_a_row_says_what_the_replays_found(recorded: RecordedProblem) -> None:
    """The space has fewer than 48 binaries, so that predicted:48 finds what a search of the whole space finds."""
    (case,) = cases([recorded], [], ["no model"])
    found = searched(case, assumed_costs_of([recorded]))
    assert [search for _, search in found] == [*STRATEGIES]
    whole = simulate(chosen_strategy("predicted"), recorded)
    assert whole.loss is not None
    sizes, mean_loss, _, worst, binaries, configs, _ = row(found["no model", "predicted:48"])
    assert (sizes, int(binaries), int(configs)) == ("1", whole.compiled, len(whole.measured))
    assert mean_loss == worst == f"{100 * whole.loss:.2f}"
    assert {len(row(its)) + 2 for its in found.values()} == {len(HEAD)}
