"""Tests of benchmarks/search/kernel_tuner_peer.py, on a stand-in for the parts of Kernel Tuner that it uses."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.search.kernel_tuner_peer import kernel_tuner, points_of
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.search.strategy import Compiled, Lost, Measured, Refused, Strategy, Task, Unit, units_of

CONFIGS = tuple(
    Config("tiled", 64, n, 64, group, num_warps=4, num_stages=stages)
    for n in (32, 64)
    for stages in range(2, 7)
    for group in (8, 1)
)
UNITS = units_of(CONFIGS)


class Budget:
    """Kernel Tuner's TuningBudget, as far as it counts."""

    def __init__(self, time_limit: None, most: int) -> None:
        self.most, self.spent = most, 0

    def add_evaluations(self, n: int) -> None:
        self.spent += n

    def is_done(self) -> bool:
        return self.spent >= self.most


class Stopped(Exception):
    """There is no more to measure."""


def tune(space: Any, runner: Any, options: Any) -> None:
    """Three batches of four points each, one of them known already, drawn from the generators that all share."""
    for _ in range(3):
        batch = random.sample(space["cache"], 3)
        batch.append(space["cache"][np.random.randint(len(space["cache"]))])
        results = runner.run([*batch, batch[0]], options)
        SEEN.append([None if each is None else ("__error__" in each, each["time"]) for each in results])
        if None in results:
            return


SEEN: list[list[object]] = []


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules by the names of Kernel Tuner's."""
    SEEN.clear()

    def space(*_: None, from_cache: dict[str, Any]) -> dict[str, Any]:
        return {**from_cache, "cache": [tuple(each.values()) for each in from_cache["cache"].values()]}

    class Options(dict[str, Any]):
        __getattr__ = dict.__getitem__

    made = {
        "kernel_tuner": {},
        "kernel_tuner.strategies": {},
        "kernel_tuner.strategies.genetic_algorithm": {"tune": tune},
        "kernel_tuner.interface": {"Options": Options},
        "kernel_tuner.searchspace": {"Searchspace": space},
        "kernel_tuner.util": {
            "TuningBudget": Budget,
            "RuntimeFailedConfig": SimpleNamespace,
            "StopCriterionReached": Stopped,
        },
    }
    for name, has in made.items():
        module = ModuleType(name)
        module.__dict__.update(has)
        monkeypatch.setitem(sys.modules, name, module)


def searching(most: int = 99, seed: int = 0) -> Strategy:
    problem = GemmProblem(128, 512, 1024)
    return kernel_tuner("genetic_algorithm", most, seed)(
        Task(problem, gpu_for_arch("sm_90"), CONFIGS, lambda unit: False)
    )


def run(strategy: Strategy, tell: Callable[[Unit], None], at_once: int = 1) -> list[Unit]:
    asked: list[Unit] = []
    while units := strategy.ask(at_once):
        asked += units
        for unit in units:
            tell(unit)
    return asked


def test_a_point_says_where_a_unit_lies() -> None:
    """Of each parameter that tells units apart the place of its value; what is set at run time is none."""
    parameters, points = points_of(UNITS)
    assert parameters == {"BLOCK_SIZE_N": [0, 1], "num_stages": [0, 1, 2, 3, 4]}
    assert points == [(n, stages) for n in range(2) for stages in range(5)]
    assert points_of(UNITS[:1]) == ({"only": [0]}, [(0,)])


def test_each_point_is_asked_for_once_and_gets_the_best_of_its_configs() -> None:
    """A batch at a time, each point once; what a point takes is the best of its configs, and a lost one is an error."""
    strategy, told = searching(), dict[Unit, float]()

    def tell(unit: Unit) -> None:
        told[unit] = len(told) + 10.0
        if len(told) == 2:
            strategy.tell(Refused(unit, unit.configs, Outcome.COMPILE_FAILED))
            return
        strategy.tell(Compiled(unit, "b", cached=False))
        strategy.tell(Measured(unit.configs[0], told[unit] + 1))
        strategy.tell(Measured(unit.configs[1], told[unit]))

    asked = run(strategy, tell)
    assert len(asked) == len(set(asked))
    assert len(SEEN) == 3
    assert SEEN[0][:3] == [(False, 10.0), (True, float("inf")), (False, 12.0)]
    assert SEEN[0][-1] == SEEN[0][0]


def lost(strategy: Strategy, unit: Unit) -> None:
    for config in unit.configs:
        strategy.tell(Lost(config, Outcome.CRASHED))


def test_equal_seeds_and_events_give_equal_decisions() -> None:
    """With its seed, whatever others draw, and leaves their generators as they were; all at once or one by one."""

    def asked(seed: int, at_once: int) -> list[Unit]:
        strategy = searching(seed=seed)
        return run(strategy, functools.partial(lost, strategy), at_once)

    random.seed(5)
    before = random.getstate()
    first = asked(3, 1)
    assert random.getstate() == before
    random.random()
    np.random.random()
    assert asked(3, 9) == first != asked(4, 1)


def test_a_budget_ends_it() -> None:
    """What it would measure beyond is no result."""
    strategy = searching(most=5)
    asked = run(strategy, functools.partial(lost, strategy))
    assert len(asked) == 5
    assert None in SEEN[-1]


def test_one_that_asks_for_nothing_new_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel Tuner's strategies draw on until the last point of a small space was drawn."""

    def drawing_on(space: Any, runner: Any, options: Any) -> None:
        with contextlib.suppress(Stopped):
            while True:
                runner.run(space["cache"][:2], options)

    monkeypatch.setattr(sys.modules["kernel_tuner.strategies.genetic_algorithm"], "tune", drawing_on)
    strategy = searching()
    assert run(strategy, functools.partial(lost, strategy)) == UNITS[:2]


def test_an_error_of_kernel_tuner_is_raised_to_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """To whoever asks it, not in its thread."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(sys.modules["kernel_tuner.strategies.genetic_algorithm"], "tune", broken)
    with pytest.raises(ZeroDivisionError, match="broken"):
        searching()


def test_without_it_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kernel_tuner", "kernel_tuner.strategies", "kernel_tuner.strategies.genetic_algorithm"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="pip install kernel-tuner"):
        kernel_tuner("genetic_algorithm", 9)
