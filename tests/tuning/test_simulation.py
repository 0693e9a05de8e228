"""Strategies on a recorded space: what they are told is what was recorded, and what it takes adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from recorded_runs import BEST, BROKEN, CONFIGS, COPIES, FIT, LOST, UNITS, US, WRONG, journal

from genkern.compile.binary_groups import binary_group
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.records import Outcome
from genkern.recorded.assumed_costs import assumed_costs_of
from genkern.recorded.load import recorded_problems
from genkern.recorded.problem import RecordedProblem
from genkern.search.limit import NO_LIMIT, Limit
from genkern.search.strategies import ChosenStrategy, chosen_strategy
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Strategy, Task, Unit
from genkern.tuning.simulation import SimulationResult, simulate

TIMED = [config for config in FIT if config.name != LOST]
# Of the unit that nobody could compile nothing is recorded: it is charged what they take in the median.
COMPILE_S = [0.5 + place for place in range(8)]
COMPILE_S[6] = 3.5


class Scripted(Strategy):
    """Asks for one batch after another, the next when all of the last is told; drops all after `enough` events."""

    def __init__(self, batches: Sequence[Sequence[Unit]], enough: int = 999) -> None:
        self.batches, self.enough = [list(batch) for batch in batches], enough
        self.events: list[Event] = []
        self.open: set[Config] = set()

    def ask(self, n: int) -> Sequence[Unit]:
        if self.open or not self.batches:
            return ()
        batch = self.batches.pop(0)
        self.open = {config for unit in batch for config in unit.configs}
        return batch

    def tell(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, Refused):
            self.open -= {*event.configs}
        elif not isinstance(event, Compiled):
            self.open.discard(event.config)

    def drop(self) -> Sequence[Unit]:
        if len(self.events) != self.enough:
            return ()
        self.batches = []
        return [unit for unit in UNITS if unit.configs[0] in self.open]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedProblem:
    """Eight units, 17 configs with a time, one that was lost, six that were refused."""
    folder = tmp_path_factory.mktemp("recorded")
    journal(folder / "r.yaml.journal")
    (problem,) = recorded_problems(str(folder / "r.yaml"))
    return problem


def played(
    strategy: Strategy, recorded: RecordedProblem, jobs: int = 16, every: bool = True, limit: Limit = NO_LIMIT
) -> SimulationResult:
    def make(task: Task) -> Strategy:
        assert task.configs == CONFIGS
        assert not task.is_cached(UNITS[0])
        return strategy

    return simulate(ChosenStrategy("user_families.py", make, every=every), recorded, jobs=jobs, limit=limit)


def took_s(recorded: RecordedProblem, *units: Unit) -> float:
    """Of all first measurements of units, lost ones too; copies take what those do that they are copies of."""
    configs = [recorded.copies.get(config, config) for unit in units for config in unit.configs]
    return sum(recorded.took_ms.get(config, 0.0) for config in configs) / 1000


def test_exhaustive_finds_the_best_and_pays_for_everything(recorded: RecordedProblem) -> None:
    """Every binary is compiled, every config is measured; one worker takes the sum of all compiles."""
    found = simulate(chosen_strategy("exhaustive"), recorded, jobs=1)
    assert (found.loss, found.final_loss, found.expected_loss) == (0.0, 0.0, 0.0)
    assert found.best == BEST
    assert found.compiled == len(found.asked) == len(UNITS)
    assert sorted(found.measured) == sorted([*TIMED, *COPIES])
    last = found.asked[-1]
    assert found.seconds == pytest.approx(sum(COMPILE_S) + took_s(recorded, last))


def test_more_workers_take_no_longer(recorded: RecordedProblem) -> None:
    """As many as there are units take what the slowest takes, and the measuring behind it."""
    seconds = [simulate(chosen_strategy("exhaustive"), recorded, jobs=jobs).seconds for jobs in (1, 2, 4, 8, 16)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == seconds[-2]
    assert seconds[0] > 3 * seconds[-1]
    assert seconds[-1] == pytest.approx(max(COMPILE_S) + took_s(recorded, UNITS[-1]))


def test_a_strategy_that_asks_for_nothing_has_no_winner(recorded: RecordedProblem) -> None:
    """No winner, no time, nothing compiled."""
    found = played(Scripted([]), recorded)
    assert (found.best, found.loss, found.final_loss, found.seconds, found.compiled) == (None, None, None, 0.0, 0)


def test_what_is_asked_for_later_is_compiled_later(recorded: RecordedProblem) -> None:
    """One after another: compiles and measurements add up, however many workers there are; else the slowest counts."""
    three = [UNITS[2], UNITS[0], UNITS[1]]
    alone = played(Scripted([[unit] for unit in three]), recorded)
    assert alone.seconds == pytest.approx(2.5 + 0.5 + 1.5 + took_s(recorded, *three))
    together = played(Scripted([three]), recorded)
    assert together.seconds == pytest.approx(2.5 + took_s(recorded, UNITS[2]))
    two = played(Scripted([three]), recorded, jobs=2)
    assert two.seconds == pytest.approx(2.5 + took_s(recorded, UNITS[2]))
    assert played(Scripted([three]), recorded, jobs=1).seconds == pytest.approx(4.5 + took_s(recorded, UNITS[1]))


def test_the_most_wanted_of_what_is_ready_is_measured_first(recorded: RecordedProblem) -> None:
    """In the order in which it was asked for, a unit to its end."""
    slow = replace(recorded, columns={**recorded.columns, "took_ms": recorded.columns["took_ms"] * 1000})
    strategy = Scripted([[UNITS[3], UNITS[2], UNITS[1], UNITS[0]]])
    found = played(strategy, slow)
    in_order = [*UNITS[0].configs, *UNITS[3].configs, *UNITS[2].configs, *UNITS[1].configs]
    assert list(found.measured) == [config for config in in_order if config.name != LOST]


def test_what_is_dropped_is_not_begun(recorded: RecordedProblem) -> None:
    """What a worker has goes on, and counts; what is being measured is measured; the rest is left."""
    strategy = Scripted([UNITS[:6]], enough=2)
    found = played(strategy, recorded, jobs=2)
    # The first two are compiled at once; with the first config of the first, the others are dropped.
    assert [event for event in strategy.events if isinstance(event, Compiled)] == [
        Compiled(UNITS[0], f"{0:016x}", cached=False)
    ]
    assert found.measured == UNITS[0].configs
    assert found.compiled == 3
    assert found.seconds == pytest.approx(0.5 + took_s(recorded, UNITS[0]))
    assert found.expected_loss is None


def test_outcomes_are_told_as_they_were(recorded: RecordedProblem) -> None:
    """A refused compile, a crash; and what is wrong is timed, but nobody's best."""
    strategy = Scripted([UNITS])
    found = played(strategy, recorded)
    refused = [event for event in strategy.events if isinstance(event, Refused)]
    assert refused == [Refused(UNITS[6], BROKEN, Outcome.COMPILE_FAILED)]
    lost = [event for event in strategy.events if isinstance(event, Lost)]
    assert lost == [Lost(Config.parse(LOST), Outcome.CRASHED)]
    assert Measured(WRONG, US[WRONG.name]) in strategy.events
    assert recorded.us[WRONG] < recorded.us[BEST]
    assert found.best == BEST
    compiled = [event.binary for event in strategy.events if isinstance(event, Compiled)]
    assert sorted(compiled) == [f"{place:016x}" for place in (0, 1, 2, 3, 4, 5, 7)]


def test_of_copies_the_first_is_measured(recorded: RecordedProblem) -> None:
    """Whichever that was when it was recorded, with the same times; all of them where every config is wanted."""
    for first, second in ((UNITS[5], UNITS[7]), (UNITS[7], UNITS[5])):
        strategy = Scripted([[first], [second]])
        found = played(strategy, recorded, every=False)
        assert found.measured == first.configs
        assert Refused(second, second.configs, Outcome.IDENTICAL) in strategy.events
        assert Measured(first.configs[0], US[UNITS[5].configs[0].name]) in strategy.events
        assert found.best in first.configs
        assert found.seconds == pytest.approx(5.5 + 7.5, abs=0.1)
        assert played(Scripted([[first], [second]]), recorded).measured == (*first.configs, *second.configs)


def test_a_loss_is_of_what_was_measured(recorded: RecordedProblem) -> None:
    """Over the best of all that is right; by finals only of what was in them."""
    found = played(Scripted([[UNITS[0]]]), recorded)
    best_us = min(US[config.name] for config in UNITS[0].configs)
    assert found.loss == best_us / US[BEST.name] - 1
    assert found.final_loss is None
    assert found.measured == UNITS[0].configs


def test_group_sizes_are_left_out_as_a_measured_process_does(recorded: RecordedProblem) -> None:
    """Of a binary far behind the best only the first is launched, which takes no time; unless all are wanted."""
    order = [UNITS[2], UNITS[0]]
    strategy = Scripted([[unit] for unit in order])
    found = played(strategy, recorded, every=False)
    assert found.measured == (*UNITS[2].configs[:2], UNITS[0].configs[0])
    assert Lost(UNITS[0].configs[1], Outcome.PREDICTED_OUT) in strategy.events
    first_ms = sum(recorded.took_ms[config] for config in found.measured)
    assert found.seconds == pytest.approx(2.5 + 0.5 + first_ms / 1000)
    everything = played(Scripted([[unit] for unit in order]), recorded)
    assert everything.measured == (*UNITS[2].configs, *UNITS[0].configs)


def test_limits_are_hard(recorded: RecordedProblem) -> None:
    """So many binaries are measured, refused ones not counted; or no more is begun when the time is up."""
    found = simulate(chosen_strategy("predicted"), recorded, limit=Limit.parse("3"))
    assert len({binary_group(config) for config in found.measured}) == 3
    assert found.expected_loss is None
    order = [UNITS[6], UNITS[0], UNITS[1], UNITS[2]]
    counted = played(Scripted([[unit] for unit in order]), recorded, limit=Limit.parse("2"))
    assert counted.measured == (*UNITS[0].configs, *UNITS[1].configs)
    timed = played(Scripted([UNITS]), recorded, limit=Limit.parse("2s"))
    assert timed.measured == (*UNITS[0].configs, *UNITS[1].configs)
    assert (timed.seconds, timed.compiled) == (2.0, 8)
    # No sooner than one is measured.
    late = played(Scripted([[UNITS[2]], [UNITS[0]]]), recorded, limit=Limit.parse("2s"))
    assert late.measured == UNITS[2].configs
    assert late.seconds == pytest.approx(2.5 + took_s(recorded, UNITS[2]))


def test_a_binary_is_compiled_once(recorded: RecordedProblem) -> None:
    """Who asks for its other configs later finds it there; at the same time, waits for the same compile."""
    first, rest = Unit(UNITS[1].configs[:1]), Unit(UNITS[1].configs[1:])
    strategy = Scripted([[first], [rest]])
    later = played(strategy, recorded)
    assert later.compiled == 1
    assert later.seconds == pytest.approx(1.5 + took_s(recorded, UNITS[1]))
    assert [event.cached for event in strategy.events if isinstance(event, Compiled)] == [False, True]
    assert played(Scripted([[first, rest]]), recorded, jobs=4).seconds == later.seconds


def test_refused_units_take_no_time_and_end_no_search(recorded: RecordedProblem) -> None:
    """The other configs of a binary that nobody could make take no time, and end no search."""
    batches = [[Unit(BROKEN[:1])], [Unit(BROKEN[1:])], [UNITS[1]]]
    assert played(Scripted(batches), recorded, jobs=1).measured == UNITS[1].configs


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: [UNITS[0], UNITS[0]], "a second time"),
        (lambda: [Unit((Config("tiled", 256, 256, 16),))], "which is none of its task"),
    ],
)
def test_what_no_search_may_do_is_refused(recorded: RecordedProblem, ask: Callable[[], list[Unit]], said: str) -> None:
    """In one line, as a run refuses it."""
    with pytest.raises(InputError, match=f"user_families.py asked for tiled_.*, {said}"):
        played(Scripted([ask()]), recorded)
    strategy = Scripted([[UNITS[0]]], enough=1)
    strategy.drop = lambda: [UNITS[5]]  # type: ignore[method-assign]
    with pytest.raises(InputError, match="dropped tiled_"):
        played(strategy, recorded)


def test_what_was_not_recorded_is_charged_by_medians(recorded: RecordedProblem) -> None:
    """Of compiles by family, and of measurements; the shares are told."""
    costs = assumed_costs_of([recorded])
    assert costs.compile_s == {"tiled": 3.5}
    assert (costs.compiles_unknown, costs.measurements_unknown) == (1 / 8, 0.0)
    nothing = {**recorded.columns, "took_ms": np.full(len(CONFIGS), np.nan)}
    unknown = replace(recorded, columns={**nothing, "compile_s": nothing["took_ms"]})
    free = assumed_costs_of([unknown])
    assert (free.slowest_s, free.took_ms) == (0.0, 0.0)
    assert (free.compiles_unknown, free.measurements_unknown) == (1.0, 1.0)
    assert simulate(chosen_strategy("exhaustive"), unknown).seconds == 0.0
    charged = simulate(chosen_strategy("exhaustive"), unknown, jobs=1, costs=costs)
    assert charged.seconds == pytest.approx(8 * 3.5, abs=0.1)


def test_recorded_runs_are_whole(recorded: RecordedProblem, tmp_path: Path) -> None:
    """Of what was recorded in part, a strategy has that part to search."""
    journal(tmp_path / "r.yaml.journal", most=5)
    (part,) = recorded_problems(str(tmp_path))
    assert (recorded.whole, part.whole) == (True, False)
    found = simulate(chosen_strategy("exhaustive"), part)
    assert len(found.measured) == 5
