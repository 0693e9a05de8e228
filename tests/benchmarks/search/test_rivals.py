"""Tests of benchmarks/search/rivals.py, on a small recorded space."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from recorded_runs import BEST, UNITS, US, WRONG, journal

from benchmarks.search import rivals
from benchmarks.search.rivals import (
    Curve,
    Rival,
    curve_of,
    is_hard,
    losses_by_rival,
    losses_of,
    main,
    report,
    taken_by_all,
)
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.recorded.folds import FoldsFolder
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.search.guided.learned import Learned
from genkern.search.guided.trees import Trees
from genkern.search.strategies import chosen_strategy
from genkern.search.strategy import Strategy, Task, Unit
from genkern.tuning.simulation import simulate


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


def test_losses_are_those_of_genkern_replay(recorded: RecordedProblem) -> None:
    """The last loss of a strategy is that of genkern replay."""
    found = simulate(chosen_strategy("exhaustive"), recorded, jobs=1, at_a_time=1)
    assert found.loss == losses_of(found, recorded).losses[-1] == 0.0
    assert len(losses_of(found, recorded).losses) == len(recorded.units)


def test_numbers_reach_the_strategies(recorded: RecordedProblem) -> None:
    """Of `--search`, and the seeds of what draws."""
    found = {rival.name: rival for rival in rivals.rivals(["predicted:3"], 99)}
    assert len(curve_of(found["genkern: predicted:3"], 0, recorded, 99).losses) == 3
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
    bf16 = GemmProblem(64, 4096, 4096), "NVIDIA H200"
    hard = GemmProblem(2, 4096, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn"), "NVIDIA H200"
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
    assert "| drawn | 1 | 40.00 |" in tables[3]
    assert "Hard sizes" in tables[4]
    assert "listed" not in tables[4]
    kinds = [row["of"] for row in rows if row["rival"] == "listed"]
    assert kinds == ["All sizes", "bf16 sizes", "bf16 sizes that every rival takes", "Sizes that are not hard"]


def test_one_size_on_two_devices_counts_twice() -> None:
    problem = GemmProblem(64, 4096, 4096)
    curves = {"ours": {(problem, f"NVIDIA {name}"): [Curve((loss,))] for name, loss in (("H100", 0.1), ("H200", 0.3))}}
    first = losses_by_rival(curves, 8)[0]
    assert (first["sizes"], first["mean loss % after 8"], first["worst %"]) == ("2", "20.00", "30.00")


def test_only_sizes_where_all_have_something_are_taken_by_all() -> None:
    """A list without any kernel like the space's has an empty curve."""
    one, two, three = ((GemmProblem(m, 4096, 4096), "NVIDIA H200") for m in (64, 128, 256))
    full, empty = [Curve((0.5,))], [Curve(())]
    assert taken_by_all({"a": {one: full, two: full, three: full}, "b": {one: empty, two: full}}) == [two]
    assert taken_by_all({}) == []


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
    second run makes none of the peers' curves again, but all of ours; the picture says what it needs.
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
    lost = [
        (row.rival[9:14], row.sizes, row["binaries tried"], row["mean loss % after 8"], row["worst %"])
        for _, row in read.iterrows()
    ]
    assert lost[:2] == [("in_va", 1, 3, 100.0, 100.0), ("finds", 1, 2, 0.0, 0.0)]
    listed = {*read[read.rival == "Inductor's 21"].of}
    assert {"All sizes", "bf16 sizes", "Hard sizes", "Hard: N or K < 512"} <= listed
    lines = kept.read_text()
    assert "random order" in lines
    assert "in_vain" not in lines
    made = tmp_path / "made"
    monkeypatch.setattr(rivals, "curve_of", partial(_noted, made, rivals.curve_of))
    main(command)
    assert (table.read_text(), kept.read_text()) == (first, lines)
    assert {line.split()[1] for line in made.read_text().splitlines()} == {"in_vain.py", "finds.py"}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit, match=r"--plot.*pip install matplotlib"):
        main([*command, "--plot", str(tmp_path / "loss.svg")])


def _noted(made: Path, curve_of: Callable[..., Curve], rival: Rival, *rest: Any) -> Curve:
    """In a file, since curves are made in other processes."""
    with made.open("a") as file:
        file.write(f"{rival.name}\n")
    return curve_of(rival, *rest)


def test_the_picture_has_every_rival(tmp_path: Path) -> None:
    """The same from the same curves, to the byte; one that takes none of the sizes that all take does no harm."""
    pytest.importorskip("matplotlib")
    place = GemmProblem(64, 4096, 4096), "NVIDIA H200"
    curves = {"ours": {place: [Curve((0.5, 0.01))]}, "zero": {place: [Curve((0.25,))]}, "none": {place: [Curve(())]}}
    pictures = []
    for name in ("a.svg", "b.svg"):
        rivals.plot(curves, 16, str(tmp_path / name))
        pictures.append((tmp_path / name).read_bytes())
    assert pictures[0] == pictures[1]
    rivals.plot(curves, 16, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_models_choose_for_sizes_that_they_do_not_know(recorded: RecordedProblem) -> None:
    """Each size by its own."""
    size = (recorded.problem.M, recorded.problem.N, recorded.problem.K)
    asked = []
    for is_small_fast in (True, False):
        learned = {size: by_rows(is_small_fast), (1, 1, 1): by_rows(not is_small_fast)}
        (zero, *_) = rivals.rivals(["zero"], 99, models=learned)
        asked.append(zero.make(0)(_task(recorded)).ask(1)[0].configs[0].BLOCK_SIZE_M)
    assert asked == [16, 64]


def test_models_of_other_tables_are_refused(folder: Path, recorded: RecordedProblem, tmp_path: Path) -> None:
    """One that was trained without another size may know this one."""
    command = [str(folder), "--search", "zero", "--jobs", "1", "--models", str(tmp_path / "folds")]
    FoldsFolder(str(tmp_path / "folds")).add(by_rows(True), [(1, 1, 1)])
    with pytest.raises(SystemExit, match=f"error: .*{recorded.problem.size}"):
        main(command)


def by_rows(is_small_fast: bool) -> Learned:
    """A tree that prefers tiles of up to 16 rows, or of more than 32."""
    at, fast_on_left = (4.5, True) if is_small_fast else (5.5, False)
    trees = Trees(
        np.array("sm_90"),
        np.array(["log_bm"]),
        np.array([[0]], dtype=np.int16),
        np.array([[at]], dtype=np.float32),
        np.array([[~0]], dtype=np.int16),
        np.array([[~1]], dtype=np.int16),
        np.array([[0.0, 1.0] if fast_on_left else [1.0, 0.0]], dtype=np.float32),
    )
    return Learned(trees)


def test_a_folder_without_records_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="error: "):
        main([str(tmp_path)])


def test_a_config_is_one_of_the_space(recorded: RecordedProblem) -> None:
    """What a peer's list names is always a unit of the recorded space."""
    listed = {rival.name: rival for rival in rivals.rivals([], 99)}["Inductor's 21"]
    asked = listed.make(0)(_task(recorded)).ask(99)
    assert {*asked} <= {*recorded.units}
    assert isinstance(asked[0].configs[0], Config)
