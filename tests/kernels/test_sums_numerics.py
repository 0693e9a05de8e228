"""Rows have the bits that the order of sums says (genkern.kernels.contract.sum_order), whatever M, the tile and the
place.

Kernels run in Triton's interpreter and on tests/gluon_stand_in.py, both with the few bits that sm_90's matrix units
keep of sums of fp8: there it shows which products are added up first. Every kernel is held to one function in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from forms import made
from gluon_cases import problem_8_bit
from gluon_stand_in import run_module
from gluon_wgmma import encoded
from interpreted import Interpreter
from numpy.typing import NDArray
from ordered_sums import POOL, operands_of_rows, summed
from small_gemms import needs_interpreter

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.sum_order import SumOrder
from genkern.kernels.generate import generate
from genkern.ops.accumulate import as_full

Rows = NDArray[np.float32]
Run = Callable[[GemmProblem, Config, list[int]], Rows]
FAST = problem_8_bit(40, 64, 512, "fp8e4m3fn", "fp8e4m3fn")
FULL = as_full(FAST)
# Of each order two kernels at least, but for the last of both.
INTERPRETED = [
    (FAST, made("tiled", 64, 16, 64, 1, 1, 4, 3)),
    (FAST, made("tiled_tma", 128, 16, 128, 1, 1, 4, 3)),
    (FAST, made("tiled_tma_swapped", 16, 64, 64, 1, 1, 4, 3)),
    (FAST, made("persistent_tma", 64, 16, 128, 1, 1, 4, 3)),
    (FAST, made("tiled", 64, 16, 64, 1, 2, 4, 3)),
    (FAST, made("tiled_tma_swapped", 16, 64, 64, 1, 2, 4, 3)),
    (FAST, made("tiled", 64, 16, 64, 1, 3, 4, 3)),
    (FAST, made("tiled_tma", 64, 16, 64, 1, 3, 4, 3)),
    (FULL, made("tiled", 64, 16, 128, 1, 1, 4, 3)),
    (FULL, made("tiled", 64, 16, 64, 1, 1, 4, 3)),
]
GLUON = [
    (FAST, made("warp_specialized", 64, 32, 128, 1, 1, 4, 4)),
    (FAST, made("warp_specialized_swapped", 24, 64, 128, 1, 1, 4, 4)),
    (FAST, made("warp_specialized_2x1", 64, 32, 128, 1, 1, 4, 4)),
    (FAST, made("warp_specialized_swapped_cluster2", 16, 64, 128, 1, 1, 4, 4)),
    (FULL, made("warp_specialized", 64, 16, 128, 1, 1, 4, 4)),
]


def order_of(problem: GemmProblem, config: Config) -> SumOrder:
    order = traits_of(config).sums(problem, config, "sm_90")
    assert order is not None
    return order


def expected(problem: GemmProblem, order: SumOrder, rows: list[int]) -> Rows:
    a, b = operands_of_rows(rows, problem.K, problem.N)
    found: Rows = summed(a, b, order.parts, order.promoted)
    return found


def on_stand_in(problem: GemmProblem, config: Config, rows: list[int]) -> Rows:
    a, b = operands_of_rows(rows, problem.K, problem.N)
    ones = np.ones(1, np.float32)
    operands = {"a": encoded(a.astype(np.float64), "e4m3"), "b": encoded(b.T.astype(np.float64), "e4m3").T}
    operands |= {"c": np.full((problem.M, problem.N), np.nan, np.float32), "scale_a": ones, "scale_b": ones}
    text = generate(problem, [config], "sm_90").text
    return np.asarray(run_module(text, config.name, operands, 2, seed=1)["c"])


def assert_in_order(
    run: Callable[[GemmProblem, Config, list[int]], Rows], problem: GemmProblem, config: Config
) -> None:
    """For few rows and for more, each at another place."""
    problem = replace(problem, N=config.BLOCK_SIZE_N)
    order = order_of(problem, config)
    of_pool = expected(problem, order, [*range(70)])
    for rows in ([3, 40], [*reversed(range(3, 70))]):
        found = run(replace(problem, M=len(rows)), config, rows)
        assert np.array_equal(np.asarray(found, np.float32), of_pool[rows]), (order.text, rows)


@needs_interpreter
@pytest.mark.parametrize(("problem", "config"), INTERPRETED, ids=lambda value: getattr(value, "name", ""))
def test_rows_in_triton(interpreter: Interpreter, problem: GemmProblem, config: Config) -> None:
    assert_in_order(interpreter.rows, problem, config)  # type: ignore[arg-type]


@pytest.mark.parametrize(("problem", "config"), GLUON, ids=lambda value: getattr(value, "name", ""))
def test_rows_in_gluon(problem: GemmProblem, config: Config) -> None:
    assert_in_order(on_stand_in, problem, config)


def test_other_orders_give_other_bits() -> None:
    """So that the tests above can fail: every two orders among theirs differ somewhere."""
    orders = {order_of(*each): each[0] for each in INTERPRETED + GLUON}
    assert len(orders) == len({order.text for order in orders}) == 6
    rows = [*range(0, POOL, 8)]
    found = {order.text: expected(problem, order, rows).tobytes() for order, problem in orders.items()}
    assert len({*found.values()}) == len(orders), [*found]


def test_shares_of_tiles_hang_on_m() -> None:
    """Of which nothing is promised: with SPLIT_K the last wave of another batch is shared otherwise."""
    config, problem = made("warp_specialized", 64, 64, 128, 1, 3, 4, 4), replace(FAST, N=64)
    assert traits_of(config).sums(problem, config, "sm_90") is None
    alone, among = (on_stand_in(replace(problem, M=m), config, [*range(m)]) for m in (40, 130))
    assert not np.array_equal(alone, among[:40])
