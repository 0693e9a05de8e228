"""The kernel for sm_90 computes, to the bit, on a machine that knows of such a GPU what the PTX ISA says.

What is run is the assembly that CuTe DSL makes of it, with copies, products and signals that take as long as chance
decides, so that a wait that is missing shows; the machine in turn is judged by faults that it must find.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import cute_binary
import numpy as np
import pytest
from cute_binary import Compiled, compiled
from cute_stand_in import needs_dsl
from forms import CUTE_FORMS, FORMS, PLACES, made
from long_tests import repeats
from ptx_gemm import computed, shows

from genkern.compile.binary.code_object import read_resources
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute.tile import BLOCK_BYTES, GROUP_WARPS, groups_of
from genkern.kernels.legality import legal
from genkern.kernels.source import load_module

pytestmark = needs_dsl
H200 = gpu_for_arch("sm_90")
FP8 = {"op": "a8w8", "dtype_b": "fp8e5m2"}


def made_of(of: GemmProblem, name: str, folder: Path) -> tuple[Config, Compiled]:
    config = Config.parse(name)
    assert not legal(of, config, H200)
    return config, compiled(of, config, "sm_90", folder)


def run(of: GemmProblem, config: Config, made: Compiled, *, seed: int, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """C as the kernel leaves it where so many clusters run at a time, and as it should be."""
    grid = made.launch.programs
    units = next(
        units for units in range(1, 500) if grid({"units": units})[0] >= min(clusters, grid({"units": 500})[0])
    )
    return computed(of, config, made, seed=seed, units=units)


def picked(stem: str, splits_k: bool, seed: int) -> tuple[GemmProblem, str]:
    """A problem of some turns, off the tiles' sides, and a config: small ones of all that the form takes."""
    # What the kernels of parts of K are called after.
    called = stem.replace("cooperative", "split").removesuffix("_direct") if splits_k else stem
    traits, random, ping_pong = FORMS[stem], Random(f"{called} {seed}"), "ping_pong" in stem
    while True:
        height = random.choice((64, 128) if ping_pong else (64, 128, 192, 256))
        width, stages = random.choice((16, 24, 40, 64, 64, 64, 72, 96, 128)), random.randint(2, 4)
        block_m, block_n = (width, height) if traits.swapped else (height, width)
        dtype = random.choice(("bf16", "bf16", "fp16", "fp8e4m3fn"))
        block_k = BLOCK_BYTES // (1 if dtype.startswith("fp8") else 2)
        fields: dict[str, object] = {
            "dtype_a": dtype,
            "dtype_b": dtype,
            "dtype_c": random.choice(("bf16", "fp16", "fp32")),
            "row_major_a": random.random() < 0.6,
            "row_major_b": random.random() < 0.4,
            "bias": random.random() < 0.4,
            "activation": random.choice(("none", "relu")),
        }
        if dtype.startswith("fp8"):
            fields |= {**FP8, "own": random.choice(((), (("scales", "per_token"),)))}
        turns_m, turns_n = random.choice(((1, 5), (5, 1), (2, 3), (3, 2)))
        m = random.randint((turns_m - 1) * block_m * traits.cluster[0] + 1, turns_m * block_m * traits.cluster[0])
        n = random.randint((turns_n - 1) * block_n * traits.cluster[1] + 1, turns_n * block_n * traits.cluster[1])
        k = random.randint(1, 9 * block_k)
        unit = random.choice(((1, 1, 16), (16, 8, 16), (8, 8, 1)))
        m, n, k = (-(-side // each) * each for side, each in zip((m, n, k), unit, strict=True))
        warps = GROUP_WARPS * groups_of(height, width, ping_pong)
        splits = random.randint(2, 4) if splits_k else 1
        config = made(stem, block_m, block_n, block_k, random.randint(1, 3), splits, warps, stages)
        of = GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]
        if not legal(of, config, H200):
            return of, config.name


# Those that split K, with a kernel for its parts besides.
STEMS = [
    (stem, splits_k)
    for stem in CUTE_FORMS
    if PLACES[stem][0] == "cute_wgmma"
    for splits_k in (False, True)[: 1 + FORMS[stem].splits_k]
]


@pytest.mark.parametrize(("stem", "splits_k"), STEMS)
def test_the_kernel_computes(stem: str, splits_k: bool, tmp_path: Path) -> None:
    """Every element of C, and nothing besides; nobody waits for ever, and nobody leaves too early."""
    for seed in range(repeats(1, 20)):
        of, name = picked(stem, splits_k, seed)
        config, made = made_of(of, name, tmp_path)
        got, wanted = run(of, config, made, seed=seed, clusters=1 + seed % 2)
        np.testing.assert_array_equal(got, wanted, f"{of} {name}")


# Of a width whole boxes of 64 are held where the operand does not run along K: alone, by two groups, in clusters.
TURNED_WIDTHS = [
    "cute_wgmma_BM128_BN136_BK64_GM2_SK1_nW8_nS3",
    "cute_wgmma_BM64_BN72_BK64_GM1_SK1_nW8_nS4_ping_pong_cl4x1",
    "cute_wgmma_BM152_BN128_BK64_GM2_SK1_nW8_nS3_swapped",
    "cute_wgmma_BM152_BN128_BK64_GM1_SK1_nW8_nS4_cl2x2_swapped",
    "cute_wgmma_BM72_BN64_BK64_GM1_SK1_nW8_nS4_ping_pong_cl1x4_swapped",
    # Of less of K a stage, alone and in a cluster.
    "cute_wgmma_BM64_BN72_BK32_GM1_SK1_nW8_nS5_ping_pong",
    "cute_wgmma_BM64_BN272_BK32_GM1_SK1_nW8_nS5_cl4x1",
]


@pytest.mark.parametrize("name", TURNED_WIDTHS)
def test_widths_of_operands_across_k(name: str, tmp_path: Path) -> None:
    """What lies beside a tile in its last box is another tile's, and multiplied there alone."""
    of = GemmProblem(608, 400, 200, row_major_a=False, row_major_b=True)
    config, made = made_of(of, name, tmp_path)
    for seed in range(2):
        np.testing.assert_array_equal(*run(of, config, made, seed=seed, clusters=2))


# Two groups that have 64 rows together: columns of a half each, or of whole boxes, in the widest tile and a narrow one.
BESIDE = [
    ("TN", "cute_wgmma_BM64_BN264_BK64_GM1_SK1_nW8_nS3_cl2x1"),
    ("TN", "cute_wgmma_BM64_BN72_BK64_GM1_SK1_nW8_nS4"),
    ("TN", "cute_wgmma_BM272_BN64_BK64_GM1_SK1_nW8_nS3_cl1x2_direct_swapped"),
    ("NT", "cute_wgmma_BM64_BN272_BK64_GM1_SK1_nW8_nS3_cl4x1"),
    ("NT", "cute_wgmma_BM64_BN136_BK64_GM2_SK1_nW8_nS3_direct"),
    ("NT", "cute_wgmma_BM400_BN64_BK64_GM1_SK1_nW8_nS3_cl1x2_swapped"),
]


@pytest.mark.parametrize(("layout", "name"), BESIDE)
def test_groups_beside_each_other(layout: str, name: str, tmp_path: Path) -> None:
    """Each multiplies and stores its columns alone, and a stage is free when both have read it."""
    of = GemmProblem(408, 440, 200, row_major_a=layout[0] == "T", row_major_b=layout[1] == "T", bias=True)
    config, made = made_of(of, name, tmp_path)
    for seed in range(2):
        np.testing.assert_array_equal(*run(of, config, made, seed=seed, clusters=2))


# Three groups that have 64 rows each: parts of C by TMA and from registers, both operands across K, in a cluster.
THREE = [
    ("TN", "cute_wgmma_BM192_BN168_BK64_GM2_SK1_nW12_nS3"),
    ("TN", "cute_wgmma_BM200_BN192_BK64_GM1_SK1_nW12_nS3_cl1x2_swapped"),
    ("NT", "cute_wgmma_BM72_BN192_BK64_GM1_SK1_nW12_nS3_cl2x1_direct_swapped"),
    ("NT", "cute_wgmma_BM192_BN64_BK32_GM1_SK1_nW12_nS4_cl2x2_direct"),
]


@pytest.mark.parametrize(("layout", "name"), THREE)
def test_three_warpgroups_multiply_their_own_rows(layout: str, name: str, tmp_path: Path) -> None:
    """Each has the sums and the parts of C of its own rows, a stage is free when all three have read it; none spill."""
    of = GemmProblem(408, 440, 200, row_major_a=layout[0] == "T", row_major_b=layout[1] == "T", bias=True)
    config, made = made_of(of, name, tmp_path)
    assert read_resources(made.image, "cuda", 0).spills == 0
    for seed in range(2):
        np.testing.assert_array_equal(*run(of, config, made, seed=seed, clusters=2))


@pytest.mark.parametrize(
    ("name", "early"),
    [
        ("cute_wgmma_BM128_BN128_BK64_GM1_SK1_nW8_nS3_ping_pong", True),
        ("cute_wgmma_BM192_BN112_BK64_GM1_SK1_nW12_nS3", True),
        ("cute_wgmma_BM168_BN128_BK64_GM1_SK1_nW8_nS3_ping_pong_swapped", False),
        ("cute_wgmma_BM128_BN136_BK64_GM1_SK1_nW8_nS3_ping_pong", False),
    ],
)
def test_the_bias_is_asked_for_before_products(name: str, early: bool, tmp_path: Path) -> None:
    """Where registers suffice, and then none spill."""
    _, made = made_of(GemmProblem(408, 440, 200, bias=True), name, tmp_path)
    asked, multiplied = (made.ptx.index(text) for text in ("ld.global", "wgmma.mma_async"))
    assert (asked < multiplied) is early
    assert not early or read_resources(made.image, "cuda", 0).spills == 0


# C from registers: two neighbours at once, in 16 and in 32 bits, and one by one.
PAIRS = [
    (102, "bf16", "cute_wgmma_BM128_BN72_BK64_GM1_SK1_nW8_nS3_direct"),
    (102, "fp32", "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW8_nS3_ping_pong_cl2x1_direct"),
    (101, "bf16", "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW4_nS3_direct"),
]


@pytest.mark.parametrize(("n", "dtype_c", "name"), PAIRS)
def test_pairs(n: int, dtype_c: str, name: str, tmp_path: Path) -> None:
    """C is whole, and nothing beside it is written, wherever N ends in a tile."""
    of = GemmProblem(200, n, 200, dtype_c=dtype_c, bias=True, activation="relu")
    config, made = made_of(of, name, tmp_path)
    np.testing.assert_array_equal(*run(of, config, made, seed=0, clusters=2))


# Seven K-blocks in three parts and in seven; sums that go to the workspace one by one, and two at a time.
PARTS = [
    ("TN", 101, "cute_wgmma_BM128_BN64_BK64_GM1_SK3_nW8_nS3_direct"),
    ("TN", 100, "cute_wgmma_BM64_BN64_BK64_GM1_SK7_nW4_nS3_cl2x1_direct"),
    ("NT", 136, "cute_wgmma_BM136_BN64_BK64_GM1_SK3_nW4_nS3_cl1x2_direct_swapped"),
]


@pytest.mark.parametrize(("layout", "n", "name"), PARTS)
def test_parts_of_k(layout: str, n: int, name: str, tmp_path: Path) -> None:
    """Each is made of its own K-blocks, whichever cluster makes it, and its sums lie behind those of the one before."""
    of = GemmProblem(200, n, 440, row_major_a=layout[0] == "T", row_major_b=layout[1] == "T", bias=True)
    config, made = made_of(of, name, tmp_path)
    assert ("st.global.v2" in made.ptx) is (n % 2 == 0 and layout == "TN")
    for clusters in (1, 2):
        np.testing.assert_array_equal(*run(of, config, made, seed=clusters, clusters=clusters))


# Turns of two groups, parts of C in two buffers, programs beside and below each other: whatever is left out shows.
JUDGED = (GemmProblem(500, 368, 328), "cute_wgmma_BM64_BN96_BK64_GM2_SK1_nW8_nS3_ping_pong_cl2x2")


def without(pattern: str, number: int = 0, *, of: int = 1) -> Callable[[str], str]:
    """The text without that instruction of those that begin so."""
    return replaced(rf"{pattern}[^;]*;", "", number, of=of)


def replaced(pattern: str, by: str, number: int = 0, *, of: int = 1) -> Callable[[str], str]:
    """The text with another one in the place of what matches, of so many that do."""

    def edit(text: str) -> str:
        found = list(re.finditer(pattern, text))
        assert len(found) == of, (pattern, found)
        one = found[number]
        return text[: one.start()] + one.expand(by) + text[one.end() :]

    return edit


# How many say of each stage that they have read it.
_EMPTY_OF = r"(mov\.b32\s+%r\d+, ){};(?=\s+mbarrier\.init)"
_EXPECTED = r"(mov\.b32\s+%r\d+, ){}(;\s+mbarrier\.arrive\.expect_tx)"
_WAIT, _PASSED = r"mbarrier\.try_wait\.parity[^;]*;", "mov.pred P1, -1;"
FAULTS: dict[str, Callable[[str], str]] = {
    "a stage is filled before it is empty": replaced(_WAIT, _PASSED, 0, of=3),
    "a program leaves before others have read what it loaded": replaced(_WAIT, _PASSED, 1, of=3),
    "a stage is read before it is full": replaced(_WAIT, _PASSED, 2, of=3),
    "a stage is free while a product may read it": replaced(r"(wgmma\.wait_group\S+\s+)1", r"\g<1>2"),
    "sums are used before they are complete": without(r"wgmma\.wait_group\S+\s+0"),
    "products begin before registers are free": without(r"wgmma\.fence"),
    "half of the bytes are waited for": replaced(_EXPECTED.format(20480), r"\g<1>10240\2"),
    "a program gets nothing of B": replaced(r"(mov\.b16\s+%rs\d+, )3;", r"\g<1>1;"),
    "a program gets nothing of A": replaced(r"(mov\.b16\s+%rs\d+, )5;", r"\g<1>1;"),
    "a stage is empty when all programs but one have read it": replaced(_EMPTY_OF.format(3), r"\g<1>2;"),
    "barriers are not known to others": without(r"fence\.mbarrier_init"),
    "programs begin before others have barriers": without(r"barrier\.cluster\.wait"),
    "groups do not wait for their turns": without(r"bar\.sync"),
    "the first turn is not given": without(r"bar\.arrive", 0, of=2),
    "a turn is not passed on": without(r"bar\.arrive", 1, of=2),
    "half of the threads make a turn": replaced(r"(bar\.sync\s+%r\d+, )256", r"\g<1>128"),
    "a part is written over one on its way": replaced(r"(wait_group\.read\s+)1", r"\g<1>2", 0, of=2),
    "the second part is written over one on its way": replaced(r"(wait_group\.read\s+)1", r"\g<1>2", 1, of=2),
    "a program leaves before its last part does": without(r"cp\.async\.bulk\.wait_group\.read\s+0"),
    "the copy engine reads what is not there yet": without(r"fence\.proxy\.async", 0, of=2),
    "registers are asked for that nobody gave back": without(r"setmaxnreg\.dec"),
}

# Two groups with a tile, three parts of it in two buffers.
ALONE = (GemmProblem(300, 400, 200), "cute_wgmma_BM128_BN168_BK64_GM2_SK1_nW8_nS2")
FAULTS_ALONE: dict[str, Callable[[str], str]] = {
    "a stage is filled before it is empty": replaced(_WAIT, _PASSED, 0, of=2),
    "a stage is read before it is full": replaced(_WAIT, _PASSED, 1, of=2),
    "a stage is free while a product may read it": replaced(r"(wgmma\.wait_group\S+\s+)1", r"\g<1>2"),
    "a stage is empty when one group has read it": replaced(_EMPTY_OF.format(2), r"\g<1>1;"),
    "barriers are not known to the copy engine": without(r"fence\.mbarrier_init"),
    "half of the first blocks' bytes are waited for": replaced(_EXPECTED.format(37888), r"\g<1>18944\2", 0, of=2),
    "half of later blocks' bytes are waited for": replaced(_EXPECTED.format(37888), r"\g<1>18944\2", 1, of=2),
    "warps begin before there are barriers": without(r"bar\.sync"),
    "a part is written over the last one of a tile": replaced(r"(wait_group\.read\s+)0", r"\g<1>1", 0, of=2),
}

# Both load two blocks of their own columns of B before they have met, and then their shares of A.
SHARING = (GemmProblem(200, 400, 328), "cute_wgmma_BM64_BN64_BK64_GM1_SK1_nW4_nS3_cl1x2")
_SHARE = r"cp\.async\.bulk\.tensor\S+multicast"
FAULTS_SHARING: dict[str, Callable[[str], str]] = {
    "half of the first blocks' bytes are waited for": replaced(_EXPECTED.format(16384), r"\g<1>8192\2", 0, of=2),
    "half of later blocks' bytes are waited for": replaced(_EXPECTED.format(16384), r"\g<1>8192\2", 1, of=2),
    "shares of the first blocks are left out": without(_SHARE, 1, of=2),
    "shares of later blocks are left out": without(_SHARE, 0, of=2),
    "programs begin before others have barriers": without(r"barrier\.cluster\.wait"),
    "barriers are not known to others": without(r"fence\.mbarrier_init"),
}

# A group's four warps fill three parts of each tile, in two buffers, which one of them sends.
SWAPPED = (GemmProblem(400, 304, 200), "cute_wgmma_BM168_BN64_BK64_GM2_SK1_nW8_nS2_ping_pong_swapped")
_TOGETHER = r"bar\.sync\s+%r\d+, 128"
FAULTS_SWAPPED: dict[str, Callable[[str], str]] = {
    "a part is written over the last one of a tile": replaced(r"(wait_group\.read\s+)0", r"\g<1>1", 0, of=2),
    "a part is written over one on its way": replaced(r"(wait_group\.read\s+)1", r"\g<1>2", 1, of=2),
    "the copy engine reads what is not there yet": without(r"fence\.proxy\.async", 0, of=3),
    "warps write before the last part of a tile is read": without(_TOGETHER, 0, of=6),
    "a part is sent before all warps have filled it": without(_TOGETHER, 1, of=6),
    "warps write before a part in the same place is read": without(_TOGETHER, 4, of=6),
    "the last part is sent before all warps have filled it": without(_TOGETHER, 5, of=6),
    "half of the warps are waited for": replaced(r"(bar\.sync\s+%r\d+, )128", r"\g<1>64", 1, of=6),
    "groups meet at one barrier": lambda text: re.sub(_TOGETHER, "bar.sync 3, 128", text),
    "sums are not transposed": lambda text: text.replace(".trans", ""),
}


def is_found(of: GemmProblem, config: Config, made: Compiled, seeds: int = 30) -> bool:
    return shows(lambda seed: run(of, config, made, seed=seed, clusters=1), seeds)


@pytest.mark.parametrize(
    ("judged", "faults"),
    [(JUDGED, FAULTS), (ALONE, FAULTS_ALONE), (SHARING, FAULTS_SHARING), (SWAPPED, FAULTS_SWAPPED)],
    ids=["cluster", "alone", "sharing", "swapped"],
)
def test_faults_of_the_text_are_found(
    judged: tuple[GemmProblem, str], faults: dict[str, Callable[[str], str]], tmp_path: Path
) -> None:
    """Each wait, fence, turn and count is missed where it is left out."""
    config, made = made_of(*judged, tmp_path)
    assert not is_found(judged[0], config, made, seeds=3)
    for fault, edit in faults.items():
        assert is_found(judged[0], config, made._replace(ptx=edit(made.ptx))), fault


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("sharers", lambda kernel: kernel.sharers - 1),
        ("groups_of_tile", lambda kernel: 2 * kernel.groups_of_tile),
    ],
)
def test_faults_of_the_protocol_are_found(
    what: str, changed: Callable[[Any], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told, and how many must say so: each of these is missed as well."""

    def loaded(path: str) -> ModuleType:
        module = load_module(path)
        made = module.Dense.__init__

        def make(kernel: Any, *given: object, **named: object) -> None:
            made(kernel, *given, **named)
            setattr(kernel, what, changed(kernel))

        module.Dense.__init__ = make
        return module

    monkeypatch.setattr(cute_binary, "load_module", loaded)
    config, made = made_of(*JUDGED, tmp_path)
    assert is_found(JUDGED[0], config, made)
