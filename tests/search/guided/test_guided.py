"""Guided: it finds what is fast after a few of many binaries, whatever the model believes, and stops by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from functools import cache

import pytest
from kept_configs import kept_configs

from genkern.compile.binary_groups import binary_group
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome, Resources
from genkern.kernels.catalogue import traits_of
from genkern.search.cost_model.predict import predict_us
from genkern.search.guided.guided import Guided
from genkern.search.guided.model import ranked
from genkern.search.strategy import Compiled, Lost, Measured, Refused, Task, Unit, units_of

PROBLEM, GPU = GemmProblem(256, 1024, 2048), gpu_for_arch("sm_90")
Times = Callable[[Config], float]


@cache
def configs() -> list[Config]:
    """Of every fifth binary: enough to leave most of them out."""
    return [config for unit in units_of(kept_configs(PROBLEM, "sm_90"))[::5] for config in unit.configs]


@cache
def physics(config: Config) -> float:
    return predict_us(PROBLEM, config, Resources(), GPU)


@cache
def otherwise(config: Config) -> float:
    """A machine on which narrow tiles, one form of a family and odd group sizes are much better than anyone thinks."""
    factor = 0.5 if config.BLOCK_SIZE_N <= 64 else 1.0
    factor *= 0.6 if traits_of(config).stem.startswith("tiled_tma") else 1.0
    return physics(config) * factor * (0.97 if config.GROUP_SIZE_M % 8 else 1.0)


def task(some: Iterable[Config] | None = None, **known: object) -> Task:
    of = tuple(configs() if some is None else some)
    return Task(PROBLEM, GPU, of, lambda unit: False, **known)  # type: ignore[arg-type]


def searched(strategy: Guided, us: Times, room: int = 64) -> tuple[list[Unit], dict[Config, float]]:
    """Everything that it asks for, measured in this order, at most so many units at a time; and the times."""
    asked: list[Unit] = []
    times: dict[Config, float] = {}
    while units := strategy.ask(room):
        asked += units
        for unit in units:
            strategy.tell(Compiled(unit, str(hash(unit.compiled)), cached=False))
            for config in unit.configs:
                times[config] = us(config)
                strategy.tell(Measured(config, times[config]))
    return asked, times


@pytest.fixture(scope="module")
def found() -> tuple[list[Unit], dict[Config, float]]:
    """What it asks for of the other machine, and the times."""
    return searched(Guided(task()), otherwise)


@pytest.mark.parametrize("us", [physics, otherwise])
@pytest.mark.parametrize("room", [8, 64])
def test_a_few_binaries_are_enough(us: Times, room: int) -> None:
    strategy = Guided(task())
    asked, times = searched(strategy, us, room)
    made = {unit.compiled for unit in asked}
    assert 20 <= len(made) <= 96
    assert len(made) < len({*map(binary_group, configs())}) / 3
    assert min(times.values()) <= 1.03 * min(map(us, configs()))
    assert 0 <= (strategy.expected_loss() or 0.0) < 0.05


def test_what_others_know_of_the_machine_is_not_needed() -> None:
    """Without anything learned it begins with the predictor, and its own times do the rest."""
    _, times = searched(Guided(task(), lambda arch: None), otherwise)
    assert min(times.values()) <= 1.05 * min(map(otherwise, configs()))


def test_kinds_have_their_first() -> None:
    """The first batch has the model's best binaries, and the best one of many forms, learned model or not."""
    kinds = {traits_of(config).stem for config in configs()}
    for strategy in (Guided(task()), Guided(task(), lambda arch: None)):
        first = strategy.ask(1000)
        assert len({traits_of(unit.configs[0]).stem for unit in first}) >= min(12, len(kinds))
        assert len(first) <= 32
    promise = [unit.compiled for unit in units_of(ranked(PROBLEM, configs(), GPU))]
    assert {*promise[:16]} <= {unit.compiled for unit in Guided(task()).ask(1000)}


def test_a_binary_that_ran_before_the_search_counts_as_the_best() -> None:
    """The winner of an earlier run is measured first. If nothing promises more, the search ends early."""
    strategy = Guided(task())
    strategy.tell(Measured(configs()[0].with_values(num_stages=7), min(map(otherwise, configs())) / 4))
    asked, _ = searched(strategy, otherwise)
    assert len({unit.compiled for unit in asked}) <= 40
    assert math.isclose(strategy.expected_loss() or 0.0, 0.0, abs_tol=2e-3)


def test_group_sizes_come_last_and_of_the_best_alone(found: tuple[list[Unit], dict[Config, float]]) -> None:
    asked, times = found
    seen: set[object] = set()
    again = [unit for unit in asked if unit.compiled in seen or seen.add(unit.compiled)]  # type: ignore[func-returns-value]
    assert again == asked[-len(again) :]
    first = {config: us for unit in asked[: -len(again)] for config in unit.configs for us in [times[config]]}
    best = {binary_group(config) for config in sorted(first, key=first.__getitem__)[:20]}
    assert {unit.compiled for unit in again} <= best
    assert min(times, key=times.__getitem__).GROUP_SIZE_M % 8


def test_no_config_is_asked_for_twice(found: tuple[list[Unit], dict[Config, float]]) -> None:
    asked = [config for unit in found[0] for config in unit.configs]
    assert len(asked) == len({*asked})
    assert {*asked} <= {*configs()}


def test_it_decides_the_same_again(found: tuple[list[Unit], dict[Config, float]]) -> None:
    assert searched(Guided(task()), otherwise) == found


def test_it_waits_for_answers() -> None:
    """Beyond its first batch it asks for nothing before it knows more."""
    strategy = Guided(task())
    first = strategy.ask(1000)
    assert strategy.ask(1000) == []
    for unit in first[:-4]:
        for config in unit.configs:
            strategy.tell(Measured(config, otherwise(config)))
    assert 0 < len(strategy.ask(1000)) <= 8


def test_the_last_that_promise_nothing_are_not_waited_for() -> None:
    """Where nothing else is wanted. What is told of them after all does no harm."""
    strategy = Guided(task())
    asked: set[Hashable] = set()
    timed: set[Hashable] = set()
    dropped: list[Unit] = []
    while units := strategy.ask(64):
        asked |= {unit.compiled for unit in units}
        # Of the first batch three take for ever, which are no good.
        slow = sorted(units, key=lambda unit: otherwise(unit.configs[0]))[-3:] if not timed else []
        for unit in [unit for unit in units if unit not in slow]:
            for config in unit.configs:
                strategy.tell(Measured(config, otherwise(config)))
                timed.add(unit.compiled)
                new = strategy.drop()
                assert not timed & {each.compiled for each in new}
                dropped += new
    assert dropped
    assert {unit.compiled for unit in dropped} <= asked
    assert len(asked) >= 28
    for config in dropped[0].configs:
        strategy.tell(Measured(config, otherwise(config)))


def test_nothing_is_dropped_before_there_are_times() -> None:
    strategy = Guided(task())
    units = strategy.ask(64)
    for unit in units[:12]:
        for config in unit.configs:
            strategy.tell(Measured(config, otherwise(config)))
            assert strategy.drop() == ()


def test_no_more_binaries_than_are_allowed() -> None:
    asked, _ = searched(Guided(task(most=10)), otherwise)
    assert len({unit.compiled for unit in asked}) == 10


def test_a_small_space_is_tried_whole() -> None:
    asked, times = searched(Guided(task(configs()[:40])), otherwise)
    assert {*times} == {*configs()[:40]}
    assert asked


def test_where_nothing_runs_it_goes_on_and_ends() -> None:
    strategy = Guided(task())
    asked = []
    while units := strategy.ask(16):
        asked += units
        for unit in units[::2]:
            strategy.tell(Refused(unit, unit.configs, Outcome.COMPILE_FAILED))
        for unit in units[1::2]:
            for config in unit.configs:
                strategy.tell(Lost(config, Outcome.CRASHED))
    tried = {unit.compiled for unit in asked}
    # What is refused costs no tries, up to so many.
    assert 96 < len(tried) <= 96 + 256
    assert len(asked) == len(tried)
    assert strategy.expected_loss() is None


def test_nothing_to_search() -> None:
    assert Guided(task(())).ask(10) == []


def test_what_nobody_can_make_costs_no_tries() -> None:
    """Where the kernels that promise most are refused, as many of the others are tried, and the best of them found."""
    strategy = Guided(task())
    promise = sorted({*map(binary_group, configs())}, key=lambda made: min(map(physics, by_binary()[made])))
    gone = {*promise[: len(promise) // 2]}
    tried: dict[Config, float] = {}
    while units := strategy.ask(64):
        for unit in units:
            if unit.compiled in gone:
                strategy.tell(Refused(unit, unit.configs, Outcome.COMPILE_FAILED))
                continue
            for config in unit.configs:
                tried[config] = physics(config)
                strategy.tell(Measured(config, tried[config]))
    assert 20 <= len({*map(binary_group, tried)}) <= 96
    left = [config for config in configs() if binary_group(config) not in gone]
    assert min(tried.values()) <= 1.03 * min(map(physics, left))


@cache
def by_binary() -> dict[object, list[Config]]:
    found: dict[object, list[Config]] = {}
    for config in configs():
        found.setdefault(binary_group(config), []).append(config)
    return found
