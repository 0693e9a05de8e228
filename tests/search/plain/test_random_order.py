"""Tests of genkern/search/plain/random_order.py."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.plain.random_order import strategy
from genkern.search.strategy import Task, Unit

CONFIGS = tuple(
    Config("tiled", 64, 64, 64, group, num_warps=4, num_stages=stages) for stages in range(2, 12) for group in (1, 8)
)


def asked(seed: int | None, configs: tuple[Config, ...] = CONFIGS) -> list[Unit]:
    task = Task(GemmProblem(128, 512, 1024), gpu_for_arch("sm_90"), configs, lambda unit: False, seed)
    made = strategy(task)
    return [*made.ask(3), *made.ask(99), *made.ask(1)]


def test_every_unit_is_asked_for_once() -> None:
    """In an order of the seed alone, which is 0 where there is none."""
    assert len(set(asked(1))) == len(asked(1)) == len(CONFIGS) // 2
    assert asked(1) == asked(1) != asked(2)
    assert {unit.compiled for unit in asked(1)} == {unit.compiled for unit in asked(2)}
    assert asked(None) == asked(0)


def test_the_order_of_the_space_has_no_say() -> None:
    """Units in which a space lists the same configs otherwise come in the same order."""
    pairs = [CONFIGS[i : i + 2] for i in range(0, len(CONFIGS), 2)]
    assert asked(3, tuple(config for pair in pairs[::-1] for config in pair)) == asked(3)
