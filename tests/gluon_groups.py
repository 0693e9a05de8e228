"""Rows in groups for the kernels in Gluon: problems, and how a call of one is run on the stand-in and judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from gluon_cases import NUMPY, PTX, text_of
from gluon_stand_in import run_module
from gluon_wgmma import encoded
from numpy.typing import NDArray

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op, groups_of

# What rows of C hold that no call may write.
_BEFORE = 7.0


def grouped(
    rows: int, n: int, k: int, groups: int, dtype: str = "fp16", own: Sequence[tuple[str, object]] = (), **more: Any
) -> GemmProblem:
    """A problem with rows in so many groups; C is in fp16 where operands are, else in fp32."""
    types = (dtype, dtype, "fp16" if dtype == "fp16" else "fp32")
    return GemmProblem(rows, n, k, "grouped_gemm", *types, own=(("groups", groups), *own), **more)  # type: ignore[arg-type]


def experts(
    tokens: int, n: int, k: int, count: int, top_k: int, dtype: str = "fp16", own: Sequence[tuple[str, object]] = ()
) -> GemmProblem:
    """The second stage of so many experts, whose rows go to slots; C is in fp32."""
    chosen = (("experts", count), *own, ("top_k", top_k))
    return GemmProblem(tokens, n, k, "fused_moe", dtype, dtype, "fp32", own=chosen)  # type: ignore[arg-type]


def group_product(
    problem: GemmProblem,
    config: Config,
    units: int,
    counts: Sequence[int],
    seed: int = 0,
    text: str = "",
    ahead: int = 0,
) -> dict[str, NDArray[Any]]:
    """C of one call with so many rows in each group, and the exact product as `expected`.

    A and B are -1, 0 and 1, and rows of A that do not count NaN where the type has it; scales are powers of two. Rows
    of C that count are NaN before. Where rows go to slots, `c` and `expected` are those of all slots, in order. So many
    other numbers lie `ahead` of each vector.
    """
    groups = groups_of(problem)
    assert groups is not None
    draw = np.random.default_rng(seed)
    N, K, rows = problem.N, problem.K, groups.rows(problem.M)
    firsts = np.arange(groups.count) * groups.capacity if groups.capacity else np.cumsum([0, *counts[:-1]])
    a = draw.integers(-1, 2, (rows, K)).astype(np.float64)
    b = draw.integers(-1, 2, (groups.count, N, K)).astype(np.float64)
    a_scaled, b_scaled, weights = a, b, np.ones(1)
    operands = {}
    for operand in get_op(problem.op).extra_operands(problem):
        if operand.role == "index":
            said = counts if groups.capacity else np.cumsum(counts)
            slots = draw.permutation(rows)
            operands[operand.name] = np.asarray(slots if operand.name == "slots" else said, np.int32)
            continue
        scales = 2.0 ** draw.integers(-2, 3, operand.shape)
        stored = scales if operand.row_major else scales.T
        operands[operand.name] = (stored if scales.ndim == 3 else stored.ravel()).astype(np.float32)
        if operand.name == "scale_a":
            a_scaled = _spread(scales, (rows, K)) * a
        elif operand.name == "routing_weights":
            weights = scales
        else:
            # Of columns [groups, 1, N], of blocks and of all [groups, blocks of columns, blocks of K].
            b_scaled = (scales.transpose(0, 2, 1) if scales.shape[2] == N else _spread(scales, (N, K))) * b
    expected, counted = np.full((rows, N), _BEFORE), np.zeros(rows, bool)
    for number, (first, count) in enumerate(zip(firsts, counts, strict=True)):
        counted[first : first + count] = True
        found = a_scaled[first : first + count] @ b_scaled[number].T
        expected[first : first + count] = np.maximum(found, 0) if problem.activation == "relu" else found
    held = encoded(a, PTX[problem.dtype_a])
    if problem.dtype_a == "fp16":
        held[~counted] = np.nan
    operands |= {"a": held, "b": encoded(b, PTX[problem.dtype_b]).mT}
    operands["c"] = np.where(counted[:, None], np.nan, expected).astype(NUMPY[problem.dtype_c])
    if groups.summed:
        operands["c"] = operands["c"][: problem.M]
    found = run_module(text or text_of(problem, config), config.name, operands, units, seed, ahead)
    if groups.summed:
        by_slot = np.empty_like(expected)
        by_slot[operands["slots"]] = expected
        return {"expected": weights[:, None] * by_slot, "c": found["workspace"].reshape(rows, N)}
    return {"expected": expected, **found}


def _spread(scales: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """One for each element, of one for all, for each row or for each block of 128."""
    scales = np.atleast_2d(scales)
    for axis, size in zip((-2, -1), shape, strict=True):
        count = scales.shape[axis]
        times = 1 if count == size else 128 if count == -(-size // 128) > 1 else size
        scales = scales.repeat(times, axis)
    return scales[..., : shape[0], : shape[1]]


def assert_groups_exact(found: dict[str, NDArray[Any]]) -> None:
    """C is right to the bit where groups have rows, and as it was where they have none."""
    assert np.array_equal(found["c"].astype(np.float64), found["expected"]), "wrong"


def said_of_groups(
    text: str,
    problem: GemmProblem,
    config: Config,
    units: int,
    counts: Sequence[int],
    seeds: Iterable[int],
    ahead: int = 0,
) -> list[str]:
    """What the stand-in says to this text with each seed, where it says something."""
    said = []
    for seed in seeds:
        try:
            assert_groups_exact(group_product(problem, config, units, counts, seed, text, ahead))
        except AssertionError as error:
            said.append(str(error))
    return said
