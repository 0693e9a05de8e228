"""Tests of genkern/search/plain/racing.py: heats of ever more units of ever fewer forms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.kernels.catalogue import form_of
from genkern.search.plain.racing import Racing
from genkern.search.strategy import Compiled, Lost, Measured, Refused, Task, Unit

PROBLEM = GemmProblem(128, 512, 1024)
FAMILIES = ("tiled", "tiled_tma", "persistent_tma")
CONFIGS = tuple(
    Config(family, 64, 64, 64, group, num_warps=4, num_stages=stages)
    for family in FAMILIES
    for stages in range(2, 34)
    for group in (1, 8)
)
FORMS = [form_of(Config(family, 64, 64, 64)).stem for family in FAMILIES]


def racing(best_us: float | None = None) -> Racing:
    return Racing(Task(PROBLEM, gpu_for_arch("sm_90"), CONFIGS, lambda unit: False, None, best_us))


def forms(units: Sequence[Unit]) -> Counter[str]:
    return Counter(form_of(unit.configs[0]).stem for unit in units)


def run_heat(strategy: Racing, us: Callable[[Config], float]) -> list[Unit]:
    """All that it asks for until it must be told, and then tell it the times."""
    units: list[Unit] = []
    while asked := strategy.ask(5):
        units += asked
    for unit in units:
        strategy.tell(Compiled(unit, str(unit.configs[0]), cached=False))
        for config in unit.configs:
            assert not strategy.ask(1)
            strategy.tell(Measured(config, us(config)))
    return units


def test_ever_more_of_ever_fewer_forms() -> None:
    """A few of each, the most promising of all first; a form that is 1.3 times the best is out after two heats, one
    that takes twice as long after one. It ends with a heat in vain."""
    times = dict(zip(FORMS, (100.0, 130.0, 200.0), strict=True))
    tried: Counter[str] = Counter()

    def us(config: Config) -> float:
        form = form_of(config).stem
        tried[form] += 1
        # The fifth unit of the best brings the last step.
        return times[form] - (tried[form] > 8) * 1.0

    strategy = racing()
    first = run_heat(strategy, us)
    assert forms(first) == dict.fromkeys(FORMS, 2)
    assert len(forms(first[:3])) == 3
    assert forms(run_heat(strategy, us)) == dict.fromkeys(FORMS[:2], 4)
    # 99 us now: a form at 129 us is more than a quarter behind.
    assert forms(run_heat(strategy, us)) == {FORMS[0]: 8}
    assert run_heat(strategy, us) == []


def test_it_ends_where_nothing_is_left() -> None:
    """Though each heat brought something."""
    strategy, step = racing(), iter(range(1000))
    total = 0
    while units := run_heat(strategy, lambda config: 100.0 - next(step) * 0.01):
        total += len(units)
    assert total == len(CONFIGS) // 2


def test_what_is_refused_or_lost_holds_no_heat_up() -> None:
    """A form of which nothing runs is out."""
    strategy = racing()
    for unit in strategy.ask(99):
        form = form_of(unit.configs[0]).stem
        if form == FORMS[0]:
            strategy.tell(Refused(unit, unit.configs, Outcome.COMPILE_FAILED))
        else:
            lost = Outcome.CRASHED if form == FORMS[1] else None
            for config in unit.configs:
                strategy.tell(Lost(config, lost) if lost else Measured(config, 10.0))
    assert forms(strategy.ask(99)) == {FORMS[2]: 4}


def test_a_time_from_before_counts() -> None:
    """Of an earlier start, or of a winner that races again: what is far behind it is out after the first heat."""
    strategy = racing(best_us=50.0)
    run_heat(strategy, lambda config: 80.0)
    assert not strategy.ask(9)
