"""Tests of benchmarks/search/rivals.py, on a small recorded space."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from recorded_runs import BEST, UNITS, US, WRONG, journal

from benchmarks.search import rivals
from benchmarks.search.rivals import Curve, Rival, curve_of, is_hard, losses_by_rival, losses_of, main, report
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.recorded.problem import RecordedProblem
from genkern.recorded.reading import recorded_problems
from genkern.search.guided.trees import Trees
from genkern.search.strategies import chosen_strategy
from genkern.search.strategy import Strategy, Task, Unit
from genkern.tuning.simulated import simulated


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results file of a run that measured two sizes whole."""
    made = tmp_path_factory.mktemp("recorded")
    journal(made / "r.yaml.journal")
    return made / "r.yaml"


@pytest.fixture(scope="module")
def recorded(folder: Path) -> RecordedProblem:
    (problem,) = recorded_problems(str(folder))
    return problem


class InOrder(Strategy):
    """Asks for these, one after another."""

    def __init__(self, *units: Unit) -> None:
        self.left = [*units]

    def ask(self, n: int) -> list[Unit]:
        asked, self.left = self.left[:n], self.left[n:]
        return asked


def loss(*units: Unit) -> float:
    """Of the best right time among these."""
    us = min(US[c.name] for unit in units for c in unit.configs if c != WRONG and c.name in US)
    return min(us / US[BEST.name] - 1, 1.0)


def curve(recorded: RecordedProblem, *units: Unit, most: int = 99) -> tuple[float, ...]:
    return curve_of(Rival("own", lambda seed: lambda task: InOrder(*units)), 0, recorded, most).losses


def test_a_curve_has_a_loss_a_binary(recorded: RecordedProblem) -> None:
    """Of right results only; a refused one was tried too; nothing found is a loss of all."""
    order = [UNITS[6], UNITS[0], UNITS[2], UNITS[3]]
    assert curve(recorded, *order) == (1.0, *(pytest.approx(loss(*order[1 : n + 1])) for n in range(1, 4)))
    assert WRONG in UNITS[1].configs
    assert curve(recorded, UNITS[1]) == (pytest.approx(loss(UNITS[1])),)
    assert curve(recorded, *order)[-1] == 0.0
    assert curve(recorded, *order, most=2) == curve(recorded, *order)[:2]


def test_other_configs_of_a_binary_cost_none(recorded: RecordedProblem) -> None:
    """What they bring counts from when they were asked for."""
    parts = [Unit(UNITS[2].configs[:1]), UNITS[0], Unit(UNITS[2].configs[1:])]
    losses = curve(recorded, *parts)
    assert len(losses) == 2
    assert losses == (pytest.approx(loss(parts[0])), 0.0)


def test_a_curve_stays_where_it_ends() -> None:
    curve = Curve((0.5, 0.25))
    assert [curve.after(n) for n in (1, 2, 3, 99)] == [0.5, 0.25, 0.25, 0.25]
    assert Curve(()).after(8) == 1.0


def test_it_is_the_replay_that_judges(recorded: RecordedProblem) -> None:
    """The last loss of a strategy is that of genkern replay."""
    found = simulated(chosen_strategy("exhaustive"), recorded, jobs=1, at_a_time=1)
    assert found.loss == losses_of(found, recorded).losses[-1] == 0.0
    assert len(losses_of(found, recorded).losses) == len(recorded.units)


def test_numbers_reach_the_strategies(recorded: RecordedProblem) -> None:
    """Of `--search`, and the seeds of what draws."""
    found = {rival.name: rival for rival in rivals.rivals(["predicted:3"], 99)}
    assert len(curve_of(found["predicted:3"], 0, recorded, 99).losses) == 3
    drawn = [found["random order"].make(seed)(_task(recorded)).ask(9) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def _task(recorded: RecordedProblem) -> Task:
    return Task(recorded.problem, recorded.gpu, recorded.configs, lambda unit: False)


@pytest.mark.parametrize(
    ("problem", "hard"),
    [
        (GemmProblem(2, 4096, 4096), True),
        (GemmProblem(64, 256, 4096), True),
        (GemmProblem(64, 513, 4096), True),
        (GemmProblem(1, 4096, 4096), False),
        (GemmProblem(1, 4096, 4096, row_major_b=True), True),
        (GemmProblem(64, 4096, 4096, row_major_b=True), False),
    ],
)
def test_hard_sizes_are_shown_apart(problem: GemmProblem, hard: bool) -> None:
    assert is_hard(problem) is hard


def test_the_tables_say_what_was_lost() -> None:
    """In percent, over the sizes at which a rival had something to try."""
    bf16, hard = GemmProblem(64, 4096, 4096), GemmProblem(2, 4096, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn")
    curves = {
        "ours": {bf16: [Curve((0.5, 0.01))], hard: [Curve((0.25,))]},
        "drawn": {bf16: [Curve((0.5,)), Curve((0.3,))], hard: [Curve((0.1,))]},
        "listed": {bf16: [Curve((0.125,))]},
    }
    rows = losses_by_rival(curves, 16)
    tables = report(rows).split("## ")
    assert "| ours | 2 | 13.00 | 13.00 | 2 | 13.00 | 23.80 | 25.00 |" in tables[1]
    assert "| drawn | 2 | 25.00 | 25.00 | 1 |" in tables[1]
    assert "| listed | 1 | 12.50 |" in tables[2]
    assert "Hard sizes" in tables[3]
    assert "listed" not in tables[3]
    kinds = [row["of"] for row in rows if row["rival"] == "listed"]
    assert kinds == ["All sizes", "bf16 sizes", "Sizes that are not hard"]


# Asks for the binaries at these places of the space.
PLACES = """
from genkern.search.strategy import Strategy, units_of


class Places(Strategy):
    left_out = "it was not asked for"

    def __init__(self, task):
        units = units_of(task.configs)
        self.left = [units[place] for place in {places}]

    def ask(self, n):
        asked, self.left = self.left[:n], self.left[n:]
        return asked


strategy = Places
"""


def test_tables_and_curves_are_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table, a CSV, tells who has found the best, and that a wrong result that is faster counts for nothing; a
    second run makes none of the curves again; the picture says what it needs.
    """
    table, kept = tmp_path / "table.csv", tmp_path / "curves.jsonl"
    assert (BEST in UNITS[2].configs, WRONG in UNITS[1].configs) == (True, True)
    assert US[WRONG.name] < US[BEST.name]
    command = [str(folder), "-o", str(table), "--kept", str(kept), "--jobs", "1"]
    for name, places in (("in_vain", [0, 1, 3]), ("finds", [2, 1])):
        own = tmp_path / f"{name}.py"
        own.write_text(PLACES.format(places=places))
        command += ["--search", str(own)]
    main(command)
    first = table.read_text()
    read = pandas.read_csv(table).fillna("")
    lost = [(row.rival[:5], row.sizes, row.tried, row["mean after 8"], row.worst) for _, row in read.iterrows()]
    assert lost[:2] == [("in_va", 1, 3, 100.0, 100.0), ("finds", 1, 2, 0.0, 0.0)]
    assert {*read[read.rival == "Inductor's 21"].of} == {"All sizes", "bf16 sizes", "Hard sizes", "Hard: N or K < 512"}
    lines = kept.read_text()
    monkeypatch.setattr(rivals, "curve_of", None)
    main(command)
    assert (table.read_text(), kept.read_text()) == (first, lines)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match="error: --plot needs matplotlib: pip install matplotlib"):
        main([*command, "--plot", str(tmp_path / "loss.svg")])


def test_folds_choose_by_models_of_other_sizes(recorded: RecordedProblem) -> None:
    """Each size by its own, and what is kept of one model is not taken for another's."""
    size = (recorded.problem.M, recorded.problem.N, recorded.problem.K)
    ours = []
    for is_small_fast in (True, False):
        learned = {size: by_rows(is_small_fast), (1, 1, 1): by_rows(not is_small_fast)}
        ours.append(rivals.rivals(["zero"], 99, models=learned)[0])
    asked = [rival.make(0)(_task(recorded)).ask(1)[0].configs[0] for rival in ours]
    assert [config.BLOCK_SIZE_M for config in asked] == [16, 64]
    keys = {rivals.key_of(rival, recorded, 99) for rival in ours}
    assert len(keys) == 2


def by_rows(is_small_fast: bool) -> Trees:
    """A tree that prefers tiles of up to 16 rows, or of more than 32."""
    at, fast_on_left = (4.5, True) if is_small_fast else (5.5, False)
    return Trees(
        np.array("sm_90"),
        np.array(["log_bm"]),
        np.array([[0]], dtype=np.int16),
        np.array([[at]], dtype=np.float32),
        np.array([[~0]], dtype=np.int16),
        np.array([[~1]], dtype=np.int16),
        np.array([[0.0, 1.0] if fast_on_left else [1.0, 0.0]], dtype=np.float32),
    )


def test_a_folder_without_records_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="error: "):
        main([str(tmp_path)])


def test_a_config_is_one_of_the_space(recorded: RecordedProblem) -> None:
    """What a peer's list names is always a unit of the recorded space."""
    listed = {rival.name: rival for rival in rivals.rivals([], 99)}["Inductor's 21"]
    asked = listed.make(0)(_task(recorded)).ask(99)
    assert {*asked} <= {*recorded.units}
    assert isinstance(asked[0].configs[0], Config)
