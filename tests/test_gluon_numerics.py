"""Numerics of the kernels in Gluon, which Triton's interpreter does not run: through tests/gluon_stand_in.py."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from gluon_machine import SHARED_BYTES
from gluon_stand_in import run_module
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genkern.config import Config
from genkern.family import FAMILIES, GLUON, powers_of, ring_of, sides
from genkern.generate import generate
from genkern.problem import GemmProblem

SHARING = [name for name in GLUON if FAMILIES[name].splits_k]
CLUSTERS = [name for name in GLUON if FAMILIES[name].cluster > 1]
# As rules and spaces have it: a release whose views of shared memory may grow, and one whose may not.
RELEASES = {True: (3, 7), False: (3, 8)}
NUMPY = {"fp16": np.float16, "fp32": np.float32}


@lru_cache(maxsize=4)
def text_of(problem: GemmProblem, config: Config, views_may_grow: bool) -> str:
    """The module as it is generated where such a Triton is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genkern.family.triton_release", lambda: RELEASES[views_may_grow])
        return generate(problem, [config], "sm_90").text


def product(
    problem: GemmProblem,
    config: Config,
    units: int,
    views_may_grow: bool,
    seed: int = 0,
    text: str = "",
    largest: int = 1,
) -> dict[str, NDArray[Any]]:
    """C of one call, NaN before it, with the exact product as `expected`; of another `text` than the generated one.

    A and B are whole numbers from -largest to largest. float16 holds the sums of those up to 1.
    """
    draw = np.random.default_rng(seed)
    a = draw.integers(-largest, largest + 1, (problem.M, problem.K)).astype(np.float16)
    b = draw.integers(-largest, largest + 1, (problem.N, problem.K)).astype(np.float16).T
    operands = {"a": a, "b": b, "c": np.full((problem.M, problem.N), np.nan, NUMPY[problem.dtype_c])}
    expected = a.astype(np.float64) @ b.astype(np.float64)
    if problem.bias:
        operands["bias"] = draw.integers(-8, 9, problem.N).astype(NUMPY[problem.dtype_c])
        expected += operands["bias"]
    if problem.activation == "relu":
        expected = np.maximum(expected, 0)
    text = text or text_of(problem, config, views_may_grow)
    return {"expected": expected, **run_module(text, config.name, operands, units, seed, views_may_grow)}


def assert_exact(found: dict[str, NDArray[Any]]) -> None:
    assert np.array_equal(found["c"].astype(np.float64), found["expected"]), "wrong"
    assert not found.get("counters", np.zeros(1)).any(), "a counter that the next call does not find at zero"


def fp16_problem(m: int, n: int, k: int, **changes: Any) -> GemmProblem:
    """A problem in fp16, with C in fp16 as well unless `changes` says otherwise."""
    return GemmProblem(m, n, k, **{"dtype_a": "fp16", "dtype_b": "fp16", "dtype_c": "fp16", **changes})


def made(family: str, rows: int, width: int, split_k: int, warps: int, stages: int, group: int = 1) -> Config:
    """The config whose tile has these sides."""
    bm, bn = (width, rows) if FAMILIES[family].swaps_operands else (rows, width)
    return Config(family, bm, bn, 64, group, split_k, warps, stages)


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int, bool]:
    """A problem, a config of some family in Gluon, a number of SMs, and whether views may grow."""
    family, views_may_grow = draw(st.sampled_from(GLUON)), draw(st.booleans())
    step = FAMILIES[family].width_step
    width = step * draw(st.integers(1, 256 // step))
    warps = draw(st.sampled_from([4, 8]))
    rows = warps * draw(st.sampled_from([16, 32]))
    dtype_c = draw(st.sampled_from(sorted(NUMPY)))
    bias, activation = draw(st.booleans()), draw(st.sampled_from(["none", "relu"]))
    ring = ring_of(rows, width, views_may_grow, FAMILIES[family].cluster)
    tile_bytes = rows * width * np.dtype(NUMPY[dtype_c]).itemsize
    most = min(5, (SHARED_BYTES - tile_bytes - ring.block * 128) // ring.bytes_per_buffer)
    # What the kernel asserts: that its ring is the largest allocation.
    least = max(2, tile_bytes * powers_of(width)[0] // width // ring.bytes_per_buffer + 1)
    assume(least <= most)
    split_k = draw(st.integers(1, 5)) if FAMILIES[family].splits_k else 1
    config = made(family, rows, width, split_k, warps, draw(st.integers(least, most)), draw(st.integers(1, 3)))
    # At most four tiles along either side, so that small ones take no longer than large ones.
    m, n = (draw(st.integers(1, min(300, 4 * size))) for size in (config.BLOCK_SIZE_M, config.BLOCK_SIZE_N))
    problem = fp16_problem(m, n, draw(st.integers(1, 500)), dtype_c=dtype_c, bias=bias, activation=activation)
    return problem, config, draw(st.integers(1, 9)), views_may_grow


@settings(max_examples=100, deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_size_is_exact(case: tuple[GemmProblem, Config, int, bool], seed: int) -> None:
    """Every element of C is written once, exact, in whatever order programs and warps run; counters end at zero."""
    assert_exact(product(*case, seed))


# Clusters have no views.
KINDS = [(name, views) for name in GLUON for views in (True, False) if views or FAMILIES[name].cluster == 1]


@pytest.mark.parametrize(("rows", "warps"), [(64, 4), (128, 4), (128, 8), (256, 8)])
@pytest.mark.parametrize(("family", "views_may_grow"), KINDS)
def test_every_width_is_exact(family: str, rows: int, warps: int, views_may_grow: bool) -> None:
    """Two tiles that overhang, at each width that the family may have and that leaves room for C."""
    step = FAMILIES[family].width_step
    stages = 3
    done = 0
    for width in range(step, 257, step):
        ring = ring_of(rows, width, views_may_grow)
        if stages * ring.bytes_per_buffer + ring.block * 128 + 2 * rows * width > SHARED_BYTES:
            break
        config = made(family, rows, width, 1, warps, stages)
        problem = fp16_problem(config.BLOCK_SIZE_M + 5, config.BLOCK_SIZE_N - 3, 150)
        assert_exact(product(problem, config, 3, views_may_grow))
        done = width
    assert done == (256 if rows <= 128 else 144)


def shared_case(family: str) -> tuple[GemmProblem, Config]:
    """12 tiles of 64x80, or of 80x64; those that are shared are so by up to three programs each."""
    m, n = (480, 128) if FAMILIES[family].swaps_operands else (128, 480)
    config = made(family, 64, 80, 3, 4, 3)
    assert sides(config) == (64, 80)
    return fp16_problem(m, n, 512), config


@pytest.mark.parametrize("family", SHARING)
def test_only_what_is_beyond_the_last_full_wave_is_shared(family: str) -> None:
    """With five SMs, 12 tiles are two full waves and two tiles that all share; four of the five leave a partial sum."""
    found = product(*shared_case(family), 5, views_may_grow=True)
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
    return problem, config, text_of(problem, config, True)


@pytest.mark.parametrize("family", SHARING)
def test_large_sums_of_shares_are_exact(family: str) -> None:
    """Partial sums that take more than the 11 bits of float16 reach C as they are."""
    problem, config, text = large_sums_case(family)
    found = product(problem, config, 5, True, text=text, largest=31)
    assert_exact(found)
    sums = found["workspace"][~np.isnan(found["workspace"])]
    assert np.mean(sums.astype(np.float16) != sums) > 0.25
    # The stand-in makes a workspace of its own.
    assert 'operands["workspace"] = torch.empty(elements, dtype=torch.float32, ' in text


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize("loss", ROUNDED_SHARES)
def test_large_sums_notice_shares_in_16_bits(loss: str, family: str) -> None:
    """A kernel whose partial sums go through 16 bits does not pass the test above."""
    problem, config, text = large_sums_case(family)
    text, count = re.subn(*ROUNDED_SHARES[loss], text)
    assert count > 0
    with pytest.raises(AssertionError, match="wrong"):
        assert_exact(product(problem, config, 5, True, text=text, largest=31))


def test_a_ring_of_one_buffer_is_refused() -> None:
    """Its loader would wait for a product that waits for the loader: that shows when the kernel is compiled."""
    with pytest.raises(AssertionError, match="two buffers"):
        product(fp16_problem(64, 64, 256), made("warp_specialized", 64, 64, 1, 4, 1), 1, views_may_grow=True)


OVERWRITTEN = "overwritten while it is in use"
NOBODY = "a barrier that nobody completes"
# An arrival that comes too early, or twice: what is met first depends on whose turn it is.
UNORDERED = f"{OVERWRITTEN}|{NOBODY}"
UNFINISHED = "used before its products are done"
EARLY = "read before its copy has arrived"
# What is changed in a kernel's text, into what, and what the stand-in says to it.
MISTAKES = {
    "early release": (r"before = \(step \+.*(\s+released = .*\* more)", r"before = slot\1", UNORDERED),
    "release before the wait": (r"wait_group.sync.aligned 1;", "wait_group.sync.aligned 2;", OVERWRITTEN),
    "early use": (r"wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;", f"{UNFINISHED}|{OVERWRITTEN}"),
    "no fence": (r"fence_async_shared\(\)\n", "pass\n", "may not see"),
    "no wait for C's buffer": (r"(# The copy engine has read.*\n +)tma.store_wait\(0\)", r"\1pass", "replaced before"),
    "no wait for C": (r"\n    tma.store_wait\(0\)\n\n", "\n    pass\n\n", "a store that nobody waits for"),
    "an arrival too few": (r"(init\(barriers.index\(slot\), count=\d)", r"\1 + 1", NOBODY),
    "nobody arrives": (r"\) \* more\n", ") * 0\n", NOBODY),
    "every thread arrives": ("setp.eq.u32 arrives, thread, 0;", "setp.eq.u32 arrives, 0, 0;", UNORDERED),
    "arrives before there was a step": (r"\) \* more\n", ")\n", UNORDERED),
    "arrives at full": (r"\+ before \* 8\)", "+ (before + STAGES) * 8)", "of the other kind"),
    "first copies twice": (r"first_k = gl.where\(.*\)", "first_k = 0", f"{NOBODY}|a copy that nobody waits for"),
    "first buffers twice": (r"step = gl.minimum\(gl.cdiv\(K, 64\), STAGES\)", "step = 0", UNORDERED),
    "a first copy never": (r"if slot \* 64 < K:", "if 0 < slot * 64 < K:", NOBODY),
    "first copies of another tile": (r"tile_of\(gl.program_id\(0\), gl", "tile_of(0, gl", "wrong"),
    "no wait for an empty buffer": (r"mbarrier.wait\(barriers.index\(slot\), .*\)", "pass", OVERWRITTEN),
    "no wait for a full buffer": (r"mbarrier.wait\(barriers.index\(STAGES \+ slot\), .*\)", "pass", EARLY),
    "other parity of empty": (r"& 1\) \^ 1\)", "& 1))", UNORDERED),
    "other parity of full": (r"slot\), \(step // STAGES\)", "slot), (step // STAGES + 1)", f"{EARLY}|{NOBODY}"),
    "more bytes than come": (r"(expect\(barrier, \d+)", r"\1 + 128", NOBODY),
    "fewer bytes than come": (r"(expect\(barrier, \d+)", r"\1 - 2048", f"{EARLY}|{UNORDERED}"),
    "no bytes": (r"mbarrier.expect\(barrier, \d+\)", "mbarrier.expect(barrier, 0)", f"{EARLY}|{UNORDERED}"),
    "rows in the columns' place": (r"index\(block\)", "index(block + 1)", f"{OVERWRITTEN}|{EARLY}"),
    "copies of the next K-block": (r"\[first_row(.*?), k\]", r"[first_row\1, k + 64]", "wrong"),
    "no room for barriers": (r"(\[STAGES \* \d+) \+ 1,", r"\1,", "index beyond a view"),
    "columns elsewhere": (r"(add.u32 column, \$\d+, \d+)", r"\g<1>0", f"{EARLY}|outside the ring|wrong"),
    "K not advanced": (r"add.s64 columns, columns, 2;", "add.s64 columns, columns, 0;", "wrong"),
    "K advanced too far": (r"add.s64 rows, rows, 2;", "add.s64 rows, rows, 4;", "between two rows"),
    "registers in another order": (r"\{\$0, \$1,", "{$1, $0,", "registers out of order"),
    "registers of another chunk": (r"\{(\$0, \$1, \$2, \$3), (\$\d+, \$\d+, \$\d+, \$\d+)", r"{\2, \1", "wrong"),
    "no wgmma.fence": (r"wgmma.fence.sync.aligned;", "// none", "without a wgmma.fence"),
    "no group": (r"wgmma.commit_group.sync.aligned;", "// none", f"{UNFINISHED}|{OVERWRITTEN}"),
    "sums are replaced": (r"setp.eq.u32 more, 0, 0;", "setp.eq.u32 more, 1, 0;", "replace an accumulator"),
    "other swizzle": (r"0x40000040", "0x80000040", "not swizzled over 128 bytes"),
    "other blocks": (r"0x40000040", "0x40000080", "not 1024 bytes apart"),
    "two instructions in a line": (r"(add.s64 rows, rows, 2;)\n", r"\1 ", "not one instruction"),
    "C in another place": (r"store_tile\(c_0, \[first_m", "store_tile(c_0, [first_m + 1", "wrong|written twice"),
    "a part of C twice": (r"store_tile\(c_1, .*\)", "store_tile(c_0, [first_m, first_n], tile_0)", "written twice"),
}  # fmt: skip
ROUNDED = made("warp_specialized", 128, 48, 1, 4, 3), made("warp_specialized_swapped", 128, 24, 1, 8, 3)


@pytest.mark.parametrize("views_may_grow", [True, False], ids=["views grow", "views stay"])
@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_stand_in_notices(mistake: str, config: Config, views_may_grow: bool) -> None:
    """A kernel with a mistake does not pass here, whichever program and warpgroup runs first."""
    notices(*MISTAKES[mistake], config, views_may_grow)


def notices(pattern: str, replacement: str, message: str, config: Config, views_may_grow: bool, k: int = 700) -> None:
    """Assert that the stand-in says `message` to a kernel that is right but for this replacement in its text."""
    problem = fp16_problem(130, 70, k)
    text, count = re.subn(pattern, replacement, text_of(problem, config, views_may_grow))
    assert count > 0
    ast.parse(text)
    with pytest.raises(AssertionError, match=message):
        assert_exact(product(problem, config, 2, views_may_grow, seed=int(views_may_grow), text=text))


@pytest.mark.parametrize("views_may_grow", [True, False], ids=["views grow", "views stay"])
@pytest.mark.parametrize(
    ("config", "pattern", "replacement", "message"),
    [
        (ROUNDED[0], r"(add|sub).s64 rows, rows, 512;", r"\1.s64 rows, rows, 256;", "wrong"),
        (ROUNDED[0], r"sub.s64 rows, rows, 512;", "// none", f"{EARLY}|wrong"),
        (ROUNDED[1], r"shl.b32 row, row, 13;", "shl.b32 row, row, 12;", "between two rows|wrong"),
        (ROUNDED[1], r"(init\(barriers.index\(slot\), count=)2", r"\g<1>1", UNORDERED),
        (ROUNDED[1], r"and.b32 thread, thread, 127;", "and.b32 thread, thread, 255;", NOBODY),
        (ROUNDED[1], r"tile_0.permute\(\(1, 0\)\)", "tile_0", "another shape"),
    ],
    ids=["second half", "not back", "second warpgroup", "one arrival for two", "first warpgroup only", "not swapped"],
)
def test_the_stand_in_notices_what_several_rows_need(
    config: Config, pattern: str, replacement: str, message: str, views_may_grow: bool
) -> None:
    """The same for mistakes in what two warpgroups, two halves of 64 rows, or C's transpose need."""
    notices(pattern, replacement, message, config, views_may_grow)


@pytest.mark.parametrize("config", ROUNDED, ids=lambda config: config.family)
def test_the_stand_in_notices_copies_of_nothing(config: Config) -> None:
    """K shorter than the ring: copies beyond it fill buffers that nobody multiplies."""
    notices(r"if slot \* 64 < K:", "if True:", f"{OVERWRITTEN}|a copy that nobody waits for", config, True, k=100)


@pytest.mark.parametrize("family", SHARING)
@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"thread_barrier\(\)\n", "pass\n", "before every thread"),
        (r"\+ other, 1, 0, sem", "+ other, 1, 1, sem", "next call"),
        (r', cache_modifier=".cg"', "", "what L1 has"),
        (r"range\(first_other,", "range(first_other + 1,", "wrong"),
        (r"for other in range\(.*\)", "for other in range(0)", "wrong"),
        (r"\) \* some\n", ")\n", f"{EARLY}|{UNORDERED}"),
        (r"if \(turn == 0\) & \(last_block > first_block\)", "if turn == 0", "said again|next call"),
    ],
    ids=["no thread barrier", "not taken back", "from L1", "one missing", "all missing", "arrives", "said of nothing"],
)
def test_the_stand_in_notices_in_shares(family: str, pattern: str, replacement: str, message: str) -> None:
    """The same for mistakes in how programs share the tiles beyond the last full wave."""
    problem, config = shared_case(family)
    text, count = re.subn(pattern, replacement, text_of(problem, config, True))
    assert count > 0
    with pytest.raises(AssertionError, match=message):
        assert_exact(product(problem, config, 5, True, text=text))


# As above: what is changed in the kernel of a cluster, into what, and what the stand-in says to it.
CLUSTER_MISTAKES = {
    "not met": (r"barrier.cluster.wait.acquire.aligned;", "", "before all have met"),
    "released to itself": (r"cluster.u32 there, (\$\d+), thread;", r"cluster.u32 there, \1, 0;", UNORDERED),
    "released to one": (r"setp.lt.u32 arrives, thread, \d;", "setp.lt.u32 arrives, thread, 1;", NOBODY),
    "arrivals of one": (r"(init\(barriers.index\(slot\), count=)\d", r"\g<1>1", UNORDERED),
    "own columns only": (r"mov.u16 everyone, \d+;", "mov.u16 everyone, 1;", f"{NOBODY}|{EARLY}"),
    "bytes of its own": (r"(expect_tx.shared::cta.b64 _, \[\$3\], )\d+;", r"\g<1>8192;", f"{EARLY}|{UNORDERED}"),
    "the same part": (r"offset = gl.minimum.*", "offset = 0", EARLY),
    "the same rows": (r"first_row = .*", "first_row = 0", "wrong"),
    "another part's columns": (r"add.u32 line, \$7, \$8;", "add.u32 line, $7, 8;", f"{OVERWRITTEN}|wrong"),
    "leaves at once": (r"for _ in range\(STAGES\):", "for _ in range(0):", "a program that has ended"),
    "no wait for an empty buffer": (r"@!done bra again;", "", UNORDERED),
    "C in one place": (r"\* \d \+ rank\)(.*)\n( +first_n|        accs)", r"* 2)\1\n\2", "wrong|written twice"),
    "descriptors mixed up": (r'BINARY, 5\)', "BINARY, 0)", f"{OVERWRITTEN}|{NOBODY}|wrong|{EARLY}"),
}  # fmt: skip


@pytest.mark.parametrize("family", CLUSTERS)
@pytest.mark.parametrize("mistake", CLUSTER_MISTAKES)
def test_the_stand_in_notices_in_clusters(mistake: str, family: str) -> None:
    """The same for mistakes in what goes from one program of a cluster to another."""
    pattern, replacement, message = CLUSTER_MISTAKES[mistake]
    config = made(family, 64, 80, 1, 4, 3)
    problem = fp16_problem(300, 300, 700)
    text, count = re.subn(pattern, replacement, text_of(problem, config, True))
    assert count > 0
    found = []
    for seed in range(4):
        try:
            assert_exact(product(problem, config, 8, True, seed=seed, text=text))
        except AssertionError as error:
            found.append(str(error))
    assert found
    assert all(re.search(message, said) for said in found), found
