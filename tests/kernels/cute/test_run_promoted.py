"""The block-scaled kernel for sm_90 computes, to the bit, on the machine that runs PTX: any tile, cluster and size."""

from __future__ import annotations

import math
import re
from itertools import count
from pathlib import Path
from random import Random

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
from genkern.kernels.catalogue import traits_of
from genkern.kernels.cute.tile import GROUP_WARPS, groups_of
from genkern.kernels.families.limits import units_in_clusters
from genkern.kernels.legality import legal, legal_problem

pytestmark = needs_dsl
H200 = gpu_for_arch("sm_90")
FP8 = {"op": "a8w8_blockscale", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
PROBLEM = GemmProblem(512, 512, 512, **FP8)  # type: ignore[arg-type]
STEMS = [stem for stem in CUTE_FORMS if not legal_problem(PROBLEM, *PLACES[stem], H200)]
# One set of products and two, one wgmma of a group's rows and two; widths that divide 128 and that do not.
TILES = (
    (64, 32),
    (64, 128),
    (64, 192),
    (128, 72),
    (128, 96),
    (128, 112),
    (128, 128),
    (128, 160),
    (256, 96),
    (256, 128),
)


def run(of: GemmProblem, config: Config, made: Compiled, *, seed: int, clusters: int) -> tuple[np.ndarray, np.ndarray]:
    """C as the kernel leaves it where so many clusters run at a time, and as it should be."""
    cluster = math.prod(traits_of(config).cluster)
    units = next(units for units in count(1) if units_in_clusters(units, cluster) // cluster == clusters)
    return computed(of, config, made, seed=seed, units=units)


def picked(stem: str, seed: int) -> tuple[GemmProblem, Config]:
    """A problem of some turns, off the tiles' sides, and a config."""
    traits, random = FORMS[stem], Random(f"{stem} {seed}")
    while True:
        block_m, block_n = random.choice(TILES)
        along_m, along_n = random.choice(((1, 4), (3, 1), (2, 2)))
        high, wide = block_m * traits.cluster[0], block_n * traits.cluster[1]
        m, n = (
            random.randint((along_m - 1) * high + 1, along_m * high),
            random.randint((along_n - 1) * wide + 1, along_n * wide),
        )
        k = random.choice((16, 128, 256, 384, random.randint(1, 64) * 16))
        fields = {**FP8, "dtype_a": random.choice(("fp8e4m3fn", "fp8e5m2")), "bias": random.random() < 0.4}
        if not traits.stores_tma:
            fields["dtype_c"] = "fp32"
        of = GemmProblem(m, n if not traits.stores_tma else -(-n // 8) * 8, k, **fields)  # type: ignore[arg-type]
        warps = GROUP_WARPS * groups_of(block_m, block_n, False)
        config = made(stem, block_m, block_n, 128, random.randint(1, 3), 1, warps, random.randint(2, 4))
        if not legal(of, config, H200):
            return of, config


def test_promoting_forms_are_those_whose_warpgroups_share_a_tile() -> None:
    """Those whose groups share a tile, in every cluster."""
    upright = {stem for stem in CUTE_FORMS if stem.startswith("cute_cooperative") and "swapped" not in stem}
    assert set(STEMS) == upright
    assert len(STEMS) == 16


@pytest.mark.parametrize("stem", STEMS)
def test_the_kernel_computes(stem: str, tmp_path: Path) -> None:
    """Every element of C, and nothing besides, of A and B with other scales for each row, columns and K-block."""
    for seed in range(repeats(1, 20)):
        of, config = picked(stem, seed)
        got, wanted = run(of, config, compiled(of, config, "sm_90", tmp_path), seed=seed, clusters=1 + seed % 2)
        np.testing.assert_array_equal(got, wanted, f"{of} {config.name}")


# With two sets of products and with one, by an even number of K-blocks and by an odd one.
JUDGED = ("cute_wgmma_BM128_BN32_BK128_GM2_SK1_nW8_nS3_cl2x1", "cute_wgmma_BM256_BN128_BK128_GM2_SK1_nW8_nS2")
BLOCKS = (5, 4)
LEFT_OUT = (r"wgmma\.wait_group\S+\s+\d;", r"wgmma\.fence\S*;", r"mbarrier\.try_wait\.parity[^;]*;")


@pytest.mark.parametrize(("name", "waits"), [*zip(JUDGED, ({"0": 2, "1": 3}, {"0": 6}), strict=True)])
def test_products_are_made_while_others_are_promoted(name: str, waits: dict[str, int], tmp_path: Path) -> None:
    """Where registers suffice for two sets of them one group does so; else each waits for its own, and none spill."""
    made = compiled(GemmProblem(512, 512, 512, **FP8), Config.parse(name), "sm_90", tmp_path)  # type: ignore[arg-type]
    found = re.findall(r"wgmma\.wait_group\S+\s+(\d);", made.ptx)
    assert {each: found.count(each) for each in set(found)} == waits
    assert read_resources(made.image, "cuda", 0).spills == 0


def is_found(config: Config, made: Compiled, blocks: int) -> bool:
    of = GemmProblem(300, 72, blocks * 128, **FP8)  # type: ignore[arg-type]
    return shows(lambda seed: run(of, config, made, seed=seed, clusters=1), repeats(4, 20))


@pytest.mark.parametrize("name", JUDGED)
def test_waits_that_are_left_out_are_found(name: str, tmp_path: Path) -> None:
    """Each of them is needed, for an odd number of K-blocks or for an even one; with all of them nothing is found."""
    config = Config.parse(name)
    made = compiled(GemmProblem(512, 512, 512, **FP8), config, "sm_90", tmp_path)  # type: ignore[arg-type]
    assert not any(is_found(config, made, blocks) for blocks in BLOCKS)
    for pattern in LEFT_OUT:
        found = list(re.finditer(pattern, made.ptx))
        assert len(found) > 1
        for one in found:
            passed = "mov.pred P1, -1;" if "try_wait" in pattern else ""
            text = made.ptx[: one.start()] + passed + made.ptx[one.end() :]
            edited = made._replace(ptx=text)
            assert any(is_found(config, edited, blocks) for blocks in BLOCKS), (one.group(), one.start())
