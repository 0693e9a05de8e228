"""Tests of genkern/search: strategies by name and by file, and what each asks for when it is told something."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.strategies import STRATEGIES, chosen_strategy
from genkern.search.strategy import Task, Unit, units_of

GPU = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(128, 512, 1024)
CONFIGS = tuple(
    Config("tiled", 64, 64, 64, group, num_warps=4, num_stages=stages) for stages in range(2, 9) for group in (1, 8)
)


def task(*cached: int, number: int | None = None) -> Task:
    """Seven units, of which those with so many stages are in the cache."""
    return Task(PROBLEM, GPU, CONFIGS, lambda unit: stages(unit) in cached, number)


def stages(unit: Unit) -> int:
    return unit.configs[0].num_stages


def order(name: str = "predicted") -> list[int]:
    """The stages of the units, the most promising first, as the strategy has them that asks for everything."""
    chosen = chosen_strategy(name)
    return [stages(unit) for unit in chosen.make(task(number=chosen.number)).ask(99)]


def test_units_are_what_is_compiled_once() -> None:
    """In the order of their first configs, which keep theirs; GROUP_SIZE_M and SPLIT_K above 1 are set at run time."""
    plain, grouped, split, more = (
        Config("tiled", 64, 64, 32, *run_time) for run_time in ((1, 1), (8, 1), (1, 2), (4, 8))
    )
    assert units_of([split, plain, more, grouped, plain]) == [Unit((split, more)), Unit((plain, grouped))]


def test_what_the_cache_has_comes_first() -> None:
    """Everything once, in predicted order, so many at a time as are asked for."""
    places = order()
    cached = places[3], places[5]
    strategy = chosen_strategy("predicted").make(task(*cached))
    asked = [[stages(unit) for unit in strategy.ask(3)] for _ in range(4)]
    behind = [place for place in places if place not in cached]
    assert asked == [[*cached, behind[0]], behind[1:4], behind[4:], []]
    assert strategy.drop() == ()


OWN = """from genkern.search.strategy import Strategy, units_of

class Reversed(Strategy):
    left_out = "not among the last two"

    def __init__(self, task):
        self._left = units_of(task.configs)[-2:]

    def ask(self, n):
        return [self._left.pop() for _ in range(min(n, len(self._left)))]

strategy = Reversed
"""


def test_a_file_from_outside_is_a_strategy(tmp_path: Path) -> None:
    """It needs nothing but itself; the run's journal knows its name and its text."""
    path = tmp_path / "user_families.py"
    path.write_text(OWN)
    chosen = chosen_strategy(str(path))
    assert [stages(unit) for unit in chosen.make(task()).ask(9)] == [8, 7]
    path.write_text(OWN.replace("[-2:]", "[-3:]"))
    assert chosen_strategy(str(path)).name != chosen.name
    assert chosen.name.startswith("user_families.py ")


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_name_is_a_strategy(name: str) -> None:
    """With a number where it takes one; each asks for something, and knows how to call itself in a journal."""
    number = 3 if STRATEGIES[name].takes_number else None
    chosen = chosen_strategy(name if number is None else f"{name}:{number}")
    assert (chosen.name, chosen.number) == (name, number)
    assert chosen_strategy(chosen.said) == chosen
    assert chosen.make(task(*order(), number=number)).ask(1)


def test_the_default_is_a_name() -> None:
    assert chosen_strategy().name in STRATEGIES


def test_who_leaves_nothing_out() -> None:
    """Not the default, nor the first so many."""
    names = ["predicted", "predicted:9", "guided", "exhaustive", "cached"]
    assert [chosen_strategy(name).whole for name in names] == [True, False, False, True, False]
    assert [name for name in names if chosen_strategy(name).every] == ["exhaustive"]


def test_the_first_of_the_predicted_order() -> None:
    """So many units, those among them first that the cache has."""
    wanted = order()
    strategy = chosen_strategy("predicted:3").make(task(wanted[2], wanted[5], number=3))
    assert [stages(unit) for unit in strategy.ask(9)] == [wanted[2], wanted[0], wanted[1]]
    assert not strategy.ask(9)


def test_what_needs_no_compile() -> None:
    """In predicted order, or the first so many of it; nothing else is ever asked for."""
    wanted = order()
    there = wanted[5], wanted[2], wanted[3]
    strategy = chosen_strategy("cached").make(task(*there))
    assert [stages(unit) for unit in (*strategy.ask(2), *strategy.ask(9))] == [wanted[2], wanted[3], wanted[5]]
    assert not strategy.ask(1)
    assert [stages(unit) for unit in chosen_strategy("cached:1").make(task(*there, number=1)).ask(9)] == [wanted[2]]
    assert not chosen_strategy("cached").make(task()).ask(9)


def test_a_file_may_take_a_number(tmp_path: Path) -> None:
    """Behind a colon, as a name may; it means what the file makes of it."""
    path = tmp_path / "user_families.py"
    path.write_text(OWN.replace("[-2:]", "[-task.number:]"))
    chosen = chosen_strategy(f"{path}:4")
    assert (chosen.number, chosen.said) == (4, f"{chosen.name}:4")
    assert len(chosen.make(task(number=chosen.number)).ask(9)) == 4


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("patience", "patience is no longer part of genkern: use guided .* --budget N"),
        ("patience:0", "patience is no longer part of genkern: use guided .* --budget N"),
        ("racing", "racing is no longer part of genkern: use guided .* --budget N"),
        ("random:7", "random is no longer part of genkern: use guided .* --budget N"),
        ("predicted:0", "N is a whole number from 1 to 1000000"),
        ("predicted:", "N is a whole number from 1"),
        ("predicted:9999999", "N is a whole number from 1"),
        ("predicted:" + 5000 * "9", "N is a whole number from 1"),
        ("predicted:-3", r"predicted:-3: not guided, zero, predicted\[:N\], .* nor a file that ends in .py"),
        ("guided:4", "guided takes no number"),
        ("nothing", r"spread\[:N\].* nor a file that ends in .py"),
        ("missing.py", "No such file"),
        ("missing.py:3", "No such file"),
        ("empty.py", "no function strategy"),
        ("broken.py", r"broken.py, line 2: ZeroDivisionError"),
        ("syntax.py", "SyntaxError"),
    ],
)
def test_what_is_none_is_said(asked: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with what to do."""
    monkeypatch.chdir(tmp_path)
    Path("empty.py").write_text("strategy = 3\n")
    Path("broken.py").write_text("\n1 / 0\n")
    Path("syntax.py").write_text("def\n")
    with pytest.raises(InputError, match=said) as caught:
        chosen_strategy(asked)
    assert "\n" not in str(caught.value)


DATA = """from __future__ import annotations
from dataclasses import dataclass
from genkern.search.guided.predicted_order import PredictedOrder as strategy

@dataclass
class Seen:
    config: str
"""


def test_a_file_may_have_dataclasses(tmp_path: Path) -> None:
    """Whose fields' types are texts: they are looked up in the module."""
    (tmp_path / "user_families.py").write_text(DATA)
    assert len(chosen_strategy(str(tmp_path / "user_families.py")).make(task()).ask(9)) == 7


@pytest.mark.parametrize(
    ("units", "said"),
    [
        ("[Unit(task.configs[::-1])]", "a Unit whose configs share no binaries: .*tiled_BM64.*nS8, tiled"),
        ("[Unit(())]", r"a Unit whose configs share no binaries: \(\)"),
        ("list(task.configs)", r"ask\(n\) gave Config.*, which is not a Unit"),
    ],
)
def test_what_is_no_unit_is_said(units: str, said: str, tmp_path: Path) -> None:
    """All configs of one are launched by one set of binaries, so that times of others would be another kernel's."""
    text = OWN.replace("units_of\n", "units_of, Unit\n", 1).replace("units_of(task.configs)[-2:]", units)
    (tmp_path / "user_families.py").write_text(text)
    strategy = chosen_strategy(str(tmp_path / "user_families.py")).make(task())
    with pytest.raises(InputError, match=said) as caught:
        strategy.ask(1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loss", ["float('nan')", "-0.1", "'little'"])
def test_what_is_no_share_is_said(loss: str, tmp_path: Path) -> None:
    """What a file expects of the rest is a share, or None."""
    text = OWN.replace(
        "strategy = Reversed", "    def expected_loss(self):\n        return LOSS\n\nstrategy = Reversed"
    )
    (tmp_path / "user_families.py").write_text(text.replace("LOSS", "0.25"))
    assert chosen_strategy(str(tmp_path / "user_families.py")).make(task()).expected_loss() == 0.25
    # Another file: Python would take what it compiled of one as long, of the same second.
    (tmp_path / "other.py").write_text(text.replace("LOSS", loss))
    with pytest.raises(InputError, match=r"other\.py: expected_loss"):
        chosen_strategy(str(tmp_path / "other.py")).make(task()).expected_loss()
