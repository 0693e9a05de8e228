"""Numerics of the kernels in Gluon, which Triton's interpreter does not run: through tests/gluon_stand_in.py."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from forms import FORMS, RINGS
from gluon_cases import (
    CLUSTERS,
    LAYOUTS,
    NUMPY,
    SHARING,
    SIDE_BY_SIDE,
    assert_exact,
    changed,
    fp16_problem,
    made,
    problem_8_bit,
    product,
    room_for_stages,
    shared_case,
    text_of,
)
from gluon_stand_in import run_module
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from long_tests import drawn, in_turns, repeats, spread
from numpy.typing import NDArray

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.gluon_tile import buffer_bytes, powers_of
from genkern.kernels.contract.product import product_of
from genkern.kernels.legality import legal
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int]:
    """A problem, a config of some family in Gluon, and a number of SMs."""
    family = draw(st.sampled_from(RINGS))
    step = FORMS[family].sides.width_step
    warps = draw(st.sampled_from([4, 8]))
    rows = warps * draw(st.sampled_from([16, 32]))
    # So that the sums of other programs leave room.
    widest = min(256, (256 if FORMS[family].cluster_k == 1 else 128) * 128 // rows)
    width = step * draw(st.integers(1, widest // step))
    dtype_c = draw(st.sampled_from(sorted(NUMPY)))
    bias, activation = draw(st.booleans()), draw(st.sampled_from(["none", "relu"]))
    together = draw(st.sampled_from([1, 2, 4])) if family not in SIDE_BY_SIDE else 1
    row_major_a, row_major_b = draw(st.sampled_from(LAYOUTS))
    turned = not row_major_a if FORMS[family].swapped else row_major_b
    most = min(6 // together + 1, room_for_stages(family, rows, width, dtype_c, turned) // together)
    # What the kernel asserts: that its ring is the largest allocation.
    part_bytes = rows * powers_of(width)[0] * np.dtype(NUMPY[dtype_c]).itemsize
    least = max(2, part_bytes // (together * buffer_bytes(rows, width)) + 1)
    assume(least <= most)
    split_k = draw(st.integers(1, 5)) if FORMS[family].splits_k else 1
    stages, group = draw(st.integers(least, most)), draw(st.integers(1, 3))
    config = made(family, rows, width, split_k, warps, stages, group, together)
    # At most four tiles along either side, so that small ones take no longer than large ones; fewer for clusters.
    along = 4 if FORMS[family].cluster_k == 1 else 2
    rows, columns = (min(300, along * size) for size in (config.BLOCK_SIZE_M, config.BLOCK_SIZE_N))
    # On the copy engine's 16 bytes.
    aligned = 16 // np.dtype(NUMPY[dtype_c]).itemsize
    m, n = draw(st.integers(1, rows)), aligned * draw(st.integers(1, columns // aligned))
    # Rows of operands that do not run along K start at multiples of 16 bytes, too.
    m = m if row_major_a else -(-m // 8) * 8
    n = n if not row_major_b else -(-n // 8) * 8
    # Up to 16 K-blocks: shares of a cluster of eight have none, one, two.
    changes = {"dtype_c": dtype_c, "bias": bias, "activation": activation}
    layout = {"row_major_a": row_major_a, "row_major_b": row_major_b}
    problem = fp16_problem(m, n, 8 * draw(st.integers(1, 125)), **changes, **layout)
    assume(not legal(problem, config, gpu_for_arch("sm_90")))
    return problem, config, draw(st.integers(1, 9))


@settings(max_examples=repeats(15, 40), deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_size_is_exact(case: tuple[GemmProblem, Config, int], seed: int) -> None:
    """Every element of C is written once, exact, in whatever order programs and warps run; counters end at zero."""
    assert_exact(product(*case, seed))


# The widest tile of these rows that leaves room for three stages, by the programs that share its K.
WIDEST = {
    1: {64: 256, 128: 256, 256: 144},
    2: {64: 256, 128: 200, 256: 88},
    3: {64: 256, 256: 72},
    4: {64: 256, 256: 64},
    5: {64: 256, 256: 72},
    8: {64: 256, 256: 64},
}
EACH_WIDTH = [
    (name, rows, warps)
    for name in RINGS
    for rows, warps in ((64, 4), (128, 4), (128, 8), (256, 8))
    # What several programs exchange takes its time.
    if not (rows == 128 and FORMS[name].cluster_k > 2) and not (rows != 64 and name in SIDE_BY_SIDE)
]


@pytest.mark.parametrize(("family", "rows", "warps"), drawn([*EACH_WIDTH], 10))
def test_every_width_is_exact(family: str, rows: int, warps: int) -> None:
    """Tiles that overhang, two or a cluster's one, at every 15th width of the family for which there is room (every
    third in `make test-long`), and all the powers of two."""
    step = FORMS[family].sides.width_step
    stages = 3
    done = 0
    for width in range(step, 257, step):
        if room_for_stages(family, rows, width, "fp16") < stages:
            break
        done = width
        if width // step % repeats(15, 3) != 1 and width & (width - 1):
            continue
        config = made(family, rows, width, 1, warps, stages)
        more = 5 if FORMS[family].cluster_k == 1 else -5
        problem = fp16_problem(config.BLOCK_SIZE_M + more, config.BLOCK_SIZE_N - 8 or 8, 152)
        assert_exact(product(problem, config, 3))
    widest = WIDEST[FORMS[family].cluster_k][rows]
    assert done == widest // step * step


EIGHT_BITS = [("int8", "int8"), ("fp8e4m3fn", "fp8e4m3fn"), ("fp8e5m2", "fp8e4m3fn"), ("fp8e5m2", "fp8e5m2")]


# Families take turns.
@pytest.mark.parametrize(
    ("dtype_a", "dtype_b", "family"),
    drawn([(*types, name) for n, types in enumerate(EIGHT_BITS) for name in in_turns(RINGS, 2, n)], 10),
)
def test_8_bits_are_exact(dtype_a: str, dtype_b: str, family: str) -> None:
    """Twice as many elements to a row of the ring; scales, bias and activation, shares, and tiles that overhang."""
    swapped = FORMS[family].swapped
    shapes = ((48, 1, 4, 1), (16, 1, 8, 2 if family not in SIDE_BY_SIDE else 1), (80, 3, 4, 1))
    turn = RINGS.index(family) + (dtype_a == "int8")
    for width, split_k, warps, together in in_turns(shapes, 3, turn):
        shares = split_k if FORMS[family].splits_k else 1
        config = made(family, 16 * warps, width, shares, warps, 3, together=2 * together)
        m, n = (width + 5, 16 * warps - 4) if swapped else (16 * warps + 5, 2 * width - 4)
        problem = problem_8_bit(m, n, 528, dtype_a, dtype_b, bias=True, activation="relu")
        largest = 100 if dtype_a == "int8" else 2
        assert_exact(product(problem, config, 3, seed=width, largest=largest))


# Families take turns: each has one or two of the three.
@pytest.mark.parametrize(
    ("row_major_a", "row_major_b", "family"),
    drawn([(*layout, name) for n, layout in enumerate(LAYOUTS[1:]) for name in in_turns(RINGS, 2, n)], 8),
)
def test_every_layout_is_exact(family: str, row_major_a: bool, row_major_b: bool) -> None:
    """Operands that run along rows or columns: whole boxes of 64 and parts of one, two warpgroups, shares, depths."""
    shapes = ((64, 64, 1, 4, 1), (128, 48, 2, 8, 1), (128, 128, 1, 4, 2), (256, 64, 3, 8, 1))
    layout = {"row_major_a": row_major_a, "row_major_b": row_major_b}
    cases = []
    for rows, width, split_k, warps, together in shapes:
        shares = split_k if FORMS[family].splits_k else 1
        config = made(family, rows, width, shares, warps, 3, 2, together if family not in SIDE_BY_SIDE else 1)
        problem = fp16_problem(2 * config.BLOCK_SIZE_M - 8, config.BLOCK_SIZE_N + 24, 64 * 5 + 24, bias=True, **layout)
        if not legal(problem, config, gpu_for_arch("sm_90")):
            cases.append((problem, config))
    assert cases
    turn = RINGS.index(family) + LAYOUTS.index((row_major_a, row_major_b))
    for problem, config in in_turns(cases, len(cases), turn):
        assert_exact(product(problem, config, 2, seed=config.BLOCK_SIZE_M))


@pytest.mark.parametrize(("dtype_c", "rows", "width"), [("fp16", 128, 256), ("fp16", 256, 112), ("fp32", 128, 208)])
@pytest.mark.parametrize("family", drawn([*SIDE_BY_SIDE], 2))
def test_c_in_parts_that_take_turns_is_exact(family: str, dtype_c: str, rows: int, width: int) -> None:
    """Where the ring takes the place of C, its columns go there 64 or 32 at a time, then the rest; two tiles each."""
    config = made(family, rows, width, 1, 8, 4, 2)
    assert room_for_stages(family, rows, width, dtype_c) < 4
    m, n = 2 * config.BLOCK_SIZE_M + 8, 2 * config.BLOCK_SIZE_N - 8
    assert_exact(product(fp16_problem(m, n, 200, dtype_c=dtype_c, bias=True), config, 2))


@pytest.mark.parametrize("together", [2, 4])
@pytest.mark.parametrize("family", drawn([name for name in RINGS if name not in SIDE_BY_SIDE], 3))
def test_buffers_that_are_filled_together_are_exact(family: str, together: int) -> None:
    """A ring of two times so many, whose last round ends with one, two, ... of them, over two tiles a program."""
    config = made(family, 64, 24 if FORMS[family].swapped else 32, 1, 4, 2, together=together)
    for blocks in spread(range(4 * together, 5 * together + 1), together // 2 + 1):
        problem = fp16_problem(config.BLOCK_SIZE_M - 3, 2 * config.BLOCK_SIZE_N, 64 * blocks - 8)
        assert_exact(product(problem, config, 1, seed=blocks))


# Families take turns.
@pytest.mark.parametrize(
    ("k", "family"),
    drawn(
        [(k, name) for n, k in enumerate((8, 64, 104, 448, 520, 1600, 3000)) for name in in_turns(CLUSTERS, 2, n)], 9
    ),
)
def test_any_share_is_exact(family: str, k: int) -> None:
    """Shares of a tile's K-blocks may be empty, that of the first program too, fit the ring, or go round it twice."""
    config = made(family, 64, 48, 1, 4, 2)
    assert_exact(product(fp16_problem(70, 40, k, dtype_c="fp32"), config, 3, seed=k))


@pytest.mark.parametrize("family", [name for name in CLUSTERS if FORMS[name].cluster_k > 2])
@pytest.mark.parametrize("order", ["in order", "the other way round"])
def test_sums_of_a_cluster_are_added_in_order(order: str, family: str) -> None:
    """Each program adds the others' sums to its own, by their rank; float32's rounding tells if it were otherwise."""
    cluster = FORMS[family].cluster_k
    width = 16 * cluster
    config = made(family, 64, width, 1, 4, 2)
    problem = fp16_problem(width, 64, 64 * cluster, dtype_c="fp32")
    # The share of each program is one product, of 2^24, 1 or their negatives: what is between two floats is lost.
    shares = np.random.default_rng(0).choice([4096.0, -4096.0, 2.0**-12, -(2.0**-12)], (64, cluster))
    rows, columns = np.zeros((64, 64 * cluster), np.float16), np.zeros((width, 64 * cluster), np.float16)
    rows[:, ::64], columns[:, ::64] = shares, 4096
    sums = (shares * 4096).astype(np.float32)
    text = text_of(problem, config)
    if order != "in order":
        # As many places for each of the others, which come in the order of their ranks.
        before = "[place+{place * warps * 512}]"
        assert before in text
        text = text.replace(before, "[place+{((cluster - 2 - place // 2) * 2 + place % 2) * warps * 512}]")
    operands = {"a": columns, "b": rows.T, "c": np.full((width, 64), np.nan, np.float32)}
    found = run_module(text, config.name, operands, 1, 0)["c"].T
    expected, otherwise = (
        np.repeat(np.stack([added(sums, owner, ranks) for owner in range(cluster)], axis=1), 16, axis=1)
        for ranks in (range(cluster), range(cluster)[::-1])
    )
    assert not np.array_equal(expected, otherwise)
    assert np.array_equal(found, expected if order == "in order" else otherwise)


def added(sums: NDArray[np.float32], owner: int, ranks: Sequence[int]) -> NDArray[np.float32]:
    """sums[:, owner], and to it those of the others in this order, rounded each time."""
    return functools.reduce(operator.add, (sums[:, rank] for rank in ranks if rank != owner), sums[:, owner])


@pytest.mark.parametrize("family", SHARING)
def test_only_what_is_beyond_the_last_full_wave_is_shared(family: str) -> None:
    """With five SMs, 12 tiles are two full waves and two tiles that all share; four of the five leave a partial sum."""
    found = product(*shared_case(family), 5)
    assert_exact(found)
    left = ~np.isnan(found["workspace"].reshape(5, 64 * 80))
    # Tile 0 is shared by the first three programs, tile 1 by the last three; the last of each adds up.
    assert left.all(axis=1).tolist() == [True, True, True, True, False]
    assert left.any(axis=1).tolist() == left.all(axis=1).tolist()


# Changes of a kernel's text after which what programs hand one another is not in float32 any more.
ROUNDED_SHARES = {
    "stored in float16": (r"(, accs\[i\])\)", r"\1.to(gl.float16).to(gl.float32))"),
    "stored in bfloat16": (r"(, accs\[i\])\)", r"\1.to(gl.bfloat16).to(gl.float32))"),
    "read in float16": (r'(cache_modifier=".cg"\))', r"\1.to(gl.float16)"),
    "added up in float16": (r"sums \+ \(part,\)", "sums + (part.to(gl.float16).to(gl.float32),)"),
}


def large_sums_case(family: str) -> tuple[GemmProblem, Config, str]:
    """As shared_case with C in fp32, for operands up to 31, and its text.

    Sums of K = 512 such products are whole and at most 512 * 31 * 31 < 2**19: exact in float32. A share's have a
    standard deviation of some thousands, where float16, with 11 bits, holds multiples of 2 or 4 only.
    """
    problem, config = shared_case(family)
    problem = replace(problem, dtype_c="fp32")
    return problem, config, text_of(problem, config)


@pytest.mark.parametrize("family", SHARING)
def test_large_sums_of_shares_are_exact(family: str) -> None:
    """Partial sums that take more than the 11 bits of float16 reach C as they are."""
    problem, config, text = large_sums_case(family)
    found = product(problem, config, 5, text=text, largest=31)
    assert_exact(found)
    sums = found["workspace"][~np.isnan(found["workspace"])]
    assert np.mean(sums.astype(np.float16) != sums) > 0.25
    # The stand-in makes a workspace of its own; a module's has the type that its plan says.
    plan = launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, gpu_for_arch("sm_90"))
    assert plan.workspace_dtype == "fp32"


@pytest.mark.parametrize("family", drawn([*SHARING], 1))
@pytest.mark.parametrize("loss", ROUNDED_SHARES)
def test_large_sums_notice_shares_in_16_bits(loss: str, family: str) -> None:
    """A kernel whose partial sums go through 16 bits does not pass the test above."""
    problem, config, text = large_sums_case(family)
    text, count = re.subn(*ROUNDED_SHARES[loss], text)
    assert count > 0
    with pytest.raises(AssertionError, match="wrong"):
        assert_exact(product(problem, config, 5, text=text, largest=31))


@pytest.mark.parametrize("family", CLUSTERS)
def test_large_sums_of_clusters_are_exact(family: str) -> None:
    """What the programs of a cluster send one another takes more than the 11 bits of float16 as well."""
    problem = fp16_problem(100, 100, 1024, dtype_c="fp32")
    assert_exact(product(problem, made(family, 64, 64, 1, 4, 2), 5, largest=31))


@pytest.mark.parametrize("together", [1, 2, 4])
@pytest.mark.parametrize("family", [name for name in RINGS if name not in SIDE_BY_SIDE])
def test_a_ring_that_is_filled_at_once_is_refused(family: str, together: int) -> None:
    """Its loader would wait for a product that waits for the loader: that shows when the kernel is compiled, too."""
    problem, config = fp16_problem(64, 64, 64 * 40), made(family, 64, 64, 1, 4, 1, together=together)
    with pytest.raises(InputError, match="ring"):
        text_of(problem, config)
    text = changed(problem, replace(config, num_stages=2), "1, 1, 4, 2),", "1, 1, 4, 1),")
    text = text.replace("_nS2", "_nS1")
    with pytest.raises(AssertionError, match="a buffer to read besides"):
        product(problem, config, 1, text=text)
