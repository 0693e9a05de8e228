"""Problems and configs for the kernels in Gluon, and how they are run on tests/gluon_stand_in.py and judged."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
from forms import FORMS, RINGS
from forms import made as of_form
from gluon_machine import SHARED_BYTES
from gluon_stand_in import run_module
from gluon_wgmma import encoded
from numpy.typing import NDArray

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides
from genkern.kernels.contract.gluon_tile import buffer_bytes, landing_bytes
from genkern.kernels.generate import generate
from genkern.ops.op import get_op

SHARING = [stem for stem in RINGS if FORMS[stem].splits_k]
CLUSTERS = [stem for stem in RINGS if FORMS[stem].cluster_k > 1]
# Those whose programs of a cluster have tiles of their own.
SIDE_BY_SIDE = [stem for stem in RINGS if FORMS[stem].cluster != (1, 1)]
# Whether A and B are row-major: TN, where both run along K, NN, TT and NT.
LAYOUTS = [(True, False), (False, False), (True, True), (False, True)]
NUMPY = {"fp16": np.float16, "fp32": np.float32}
# What wgmma calls the types.
PTX = {"fp16": "f16", "int8": "s8", "fp8e4m3fn": "e4m3", "fp8e5m2": "e5m2"}


@lru_cache(maxsize=4)
def text_of(problem: GemmProblem, config: Config) -> str:
    return generate(problem, [config], "sm_90").text


def product(
    problem: GemmProblem, config: Config, units: int, seed: int = 0, text: str = "", largest: int = 1
) -> dict[str, NDArray[Any]]:
    """C of one call, NaN before it, with the exact product as `expected`; of another `text` than the generated one.

    A and B are whole numbers from -largest to largest, scales powers of two. float16 holds the sums of those up to 1.
    """
    draw = np.random.default_rng(seed)
    a = draw.integers(-largest, largest + 1, (problem.M, problem.K)).astype(np.float64)
    b = draw.integers(-largest, largest + 1, (problem.N, problem.K)).astype(np.float64)
    operands = {"a": encoded(a, PTX[problem.dtype_a]), "b": encoded(b, PTX[problem.dtype_b]).T}
    operands["c"] = np.full((problem.M, problem.N), np.nan, NUMPY[problem.dtype_c])
    expected = a @ b.T
    if problem.op == "a8w8":
        operands |= {"scale_a": np.full(1, 0.5, np.float32), "scale_b": np.full(1, 4.0, np.float32)}
        expected *= 2
    if problem.op == "a8w8_blockscale":
        of_a, of_b = (
            2.0 ** draw.integers(-2, 3, operand.shape) for operand in get_op(problem.op).step_operands(problem)
        )
        # Scales of A lie column by column.
        operands |= {"scale_a": of_a.T.astype(np.float32).ravel(), "scale_b": of_b.astype(np.float32).ravel()}
        expected = spread_scales(problem, "a", of_a) * a @ (spread_scales(problem, "b", of_b) * b).T
    if problem.bias:
        operands["bias"] = draw.integers(-8, 9, problem.N).astype(NUMPY[problem.dtype_c])
        expected += operands["bias"]
    if problem.activation == "relu":
        expected = np.maximum(expected, 0)
    return {"expected": expected, **run_module(text or text_of(problem, config), config.name, operands, units, seed)}


def spread_scales(problem: GemmProblem, operand: str, scales: NDArray[Any]) -> NDArray[Any]:
    """The scale of each element of A [M, K] or B [N, K]."""
    block_m, block_n, block_k = get_op(problem.op).shared_scale(problem)
    rows, block = (problem.M, block_m) if operand == "a" else (problem.N, block_n)
    return scales.repeat(block, 0)[:rows].repeat(block_k, 1)[:, : problem.K]


def assert_exact(found: dict[str, NDArray[Any]]) -> None:
    assert np.array_equal(found["c"].astype(np.float64), found["expected"]), "wrong"
    assert not found.get("counters", np.zeros(1)).any(), "a counter that the next call does not find at zero"


def fp16_problem(m: int, n: int, k: int, **changes: Any) -> GemmProblem:
    """A problem in fp16, with C in fp16 as well unless `changes` says otherwise."""
    return GemmProblem(m, n, k, **{"dtype_a": "fp16", "dtype_b": "fp16", "dtype_c": "fp16", **changes})


def problem_8_bit(m: int, n: int, k: int, dtype_a: str, dtype_b: str, **changes: Any) -> GemmProblem:
    """A problem in 8 bits with one scale for each operand, with C in fp32 unless `changes` says otherwise."""
    return GemmProblem(m, n, k, **{"op": "a8w8", "dtype_a": dtype_a, "dtype_b": dtype_b, "dtype_c": "fp32", **changes})


def block_scaled(
    m: int, n: int, k: int, dtype: str = "fp8e4m3fn", own: tuple[tuple[str, int], ...] = (), **changes: Any
) -> GemmProblem:
    """A problem in 8 bits with scales of blocks, with C in fp32 unless `changes` says otherwise."""
    more = {"op": "a8w8_blockscale", "dtype_a": dtype, "dtype_b": dtype, "dtype_c": "fp32", "own": own}
    return GemmProblem(m, n, k, **{**more, **changes})


def made(
    stem: str, rows: int, width: int, split_k: int, warps: int, stages: int, group: int = 1, together: int = 1
) -> Config:
    """The config of this form whose tile has these sides, and whose ring has `stages` times so many buffers."""
    bm, bn = (width, rows) if FORMS[stem].swapped else (rows, width)
    return of_form(stem, bm, bn, 64 * together, group, split_k, warps, stages)


def room_for_stages(stem: str, rows: int, width: int, dtype_c: str, columns_turned: bool = False) -> int:
    """Stages for which there is room besides the barriers, the sums of other programs, and C."""
    others = landing_bytes(rows, width, FORMS[stem].cluster_k)
    tile = rows * width * np.dtype(NUMPY[dtype_c]).itemsize
    return (SHARED_BYTES - tile - others - 1024) // buffer_bytes(rows, width, columns_turned)


def shared_case(stem: str) -> tuple[GemmProblem, Config]:
    """12 tiles of 64x80, or of 80x64; those that are shared are so by up to three programs each."""
    m, n = (480, 128) if FORMS[stem].swapped else (128, 480)
    config = made(stem, 64, 80, 3, 4, 3)
    assert sides(config) == (64, 80)
    return fp16_problem(m, n, 512), config


def changed(problem: GemmProblem, config: Config, before: str, after: str) -> str:
    """The generated module with this text, which it has, replaced."""
    text = text_of(problem, config)
    assert before in text, before
    return text.replace(before, after)


def said_to(text: str, problem: GemmProblem, config: Config, units: int, seeds: Iterable[int]) -> list[str]:
    """What the stand-in says to this text with each seed, where it says something."""
    found = []
    for seed in seeds:
        try:
            assert_exact(product(problem, config, units, seed=seed, text=text))
        except AssertionError as error:
            found.append(str(error))
    return found


def assert_noticed(mistake: tuple[str, str, str], problem: GemmProblem, config: Config, units: int, seed: int) -> None:
    """The stand-in says what belongs to a mistake: a text, what stands in its place, and a pattern of what is said."""
    before, after, message = mistake
    (said,) = said_to(changed(problem, config, before, after), problem, config, units, [seed])
    assert re.search(message, said), said
