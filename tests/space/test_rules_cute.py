"""Tests of genkern.space.rules.cute: each rule drops what it says, and keeps a neighbour."""

# ruff: noqa: E501  one case a line reads better than wrapped ones

from __future__ import annotations

import pytest
from forms import made

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.rules import cute
from genkern.space.rules.registry import RULES

H200, B200 = gpu_for_arch("sm_90"), gpu_for_arch("sm_100")
LARGE = GemmProblem(4096, 6144, 4096)


def problem(m: int, n: int, k: int = 4096, **fields: object) -> GemmProblem:
    return GemmProblem(m, n, k, **fields)  # type: ignore[arg-type]


def ping_pong(m: int, n: int, form: str = "", stages: int = 4) -> Config:
    return made(f"cute_ping_pong{form}", m, n, 64, 8, 1, 8, stages)


def together(m: int, n: int, form: str = "", stages: int = 4) -> Config:
    return made(f"cute_cooperative{form}", m, n, 64, 8, 1, 8 if m > 64 else 4, stages)


def three(m: int, n: int) -> Config:
    return Config("cute_wgmma", m, n, 64, 8, 1, 12, 4)


def swapped(m: int, n: int, form: str = "", stages: int = 4) -> Config:
    return made(f"cute_ping_pong_swapped{form}", m, n, 64, 8, 1, 8, stages)


def split(m: int, n: int, splits: int, form: str = "") -> Config:
    return made(f"cute_cooperative{form}_direct", m, n, 64, 1, splits, 8, 4)


ALONG_M = problem(3456, 624, row_major_a=False)
# rule, (problem, config) that it drops, (problem, config) nearby that it keeps
CASES = [
    ("cute_rows", (problem(64, 4096), ping_pong(128, 128)), (problem(65, 4096), ping_pong(128, 128))),
    ("cute_rows", (problem(32, 4096), ping_pong(64, 128)), (problem(33, 4096), ping_pong(64, 128))),
    # Swapped tiles have their rows along N, and suit few rows of A.
    ("cute_rows", (problem(4096, 64), swapped(128, 128)), (problem(16, 65), swapped(32, 128))),
    ("cute_rows", (problem(32, 4096), ping_pong(64, 64)), (problem(32, 4096), swapped(64, 64))),
    ("cute_width", (problem(65, 4096), swapped(80, 128)), (problem(65, 4096), swapped(72, 128))),
    ("cute_width", (problem(1, 4096), swapped(40, 64)), (problem(1, 4096), swapped(32, 64))),
    ("cute_width", (problem(512, 120), ping_pong(128, 128)), (problem(512, 121), ping_pong(128, 128))),
    ("cute_tile_small", (problem(4096, 4224), ping_pong(128, 112)), (problem(4096, 4224), ping_pong(128, 128))),
    ("cute_tile_small", (problem(4096, 2129), ping_pong(128, 120)), (problem(2048, 2129), ping_pong(128, 120))),
    ("cute_tile_small", (problem(4224, 4096), swapped(112, 128)), (problem(4224, 4096), swapped(128, 128))),
    ("cute_stages", (LARGE, swapped(168, 128, "", 4)), (LARGE, swapped(168, 128, "", 5))),
    ("cute_stages", (LARGE, ping_pong(128, 168, "", 4)), (LARGE, ping_pong(128, 168, "", 5))),
    ("cute_stages", (LARGE, together(64, 64, "", 11)), (LARGE, together(64, 64, "", 12))),
    # 160 tiles are two waves of 132, 1,184 nearly nine.
    ("cute_wave", (problem(2048, 1600), ping_pong(128, 160)), (LARGE, ping_pong(128, 168))),
    ("cute_wave", (problem(2048, 1600), ping_pong(128, 160)), (problem(2048, 1600), ping_pong(128, 128))),
    ("cute_wave", (problem(1600, 2048), swapped(160, 128)), (problem(6144, 4096), swapped(168, 128))),
    ("cute_wave", (problem(1600, 2048), swapped(160, 128)), (problem(160, 2048), swapped(160, 128))),
    # 98 tiles of 192 rows are three quarters of a wave of 132, 120 of them nine tenths.
    ("cute_wave", (problem(1344, 1792), three(192, 128)), (problem(1536, 1920), three(192, 128))),
    # The library's tile there: 120 programs of 132.
    ("cute_wave", (problem(4316, 128), swapped(56, 64)), (problem(4316, 128), swapped(72, 64))),
    # Eleven clusters of a possible fifteen, each with all columns.
    ("cute_wave", (problem(2728, 184), together(64, 80, "_4x2")), (problem(2728, 184), together(64, 96, "_4x2"))),
    # The library's tile for such a size: 110 programs of 132.
    ("cute_wave", (problem(3456, 512), swapped(160, 128)), (problem(3456, 624), swapped(160, 128))),
    # 144 tiles of 128x64 are two waves of 132, 128 of 128x72 one. A width that covers N, or a power of two, stays.
    ("cute_fitted", (problem(2048, 544), together(128, 80)), (problem(2048, 544), together(128, 72))),
    ("cute_fitted", (problem(512, 544), together(128, 72)), (problem(512, 544), together(128, 128))),
    ("cute_fitted", (problem(512, 88), together(128, 80)), (problem(512, 88), together(128, 88))),
    ("cute_fitted", (problem(544, 2048), swapped(80, 128)), (problem(544, 2048), swapped(72, 128))),
    ("cute_fitted", (problem(2048, 544), together(128, 80, "_1x4")), (problem(2048, 544), together(128, 136, "_1x4"))),
    # Where A runs along M, 136 does not replace 144 or 160, whose tiles begin on sectors and half lines; but where rows
    # of A begin off sectors themselves.
    ("cute_fitted", (problem(3456, 624), swapped(144, 128)), (ALONG_M, swapped(144, 128))),
    ("cute_fitted", (problem(3456, 624), swapped(160, 128)), (ALONG_M, swapped(160, 128))),
    ("cute_fitted", (ALONG_M, swapped(152, 128)), (ALONG_M, swapped(136, 128))),
    ("cute_fitted", (problem(3464, 624, row_major_a=False), swapped(144, 128)), (ALONG_M, swapped(144, 128))),
    ("cute_fitted", (problem(624, 3456), ping_pong(128, 144)), (problem(624, 3456, row_major_b=True), ping_pong(128, 144))),
    ("cute_cluster_empty", (problem(72, 4096), swapped(72, 64, "_2x1")), (problem(73, 4096), swapped(72, 64, "_2x1"))),
    ("cute_large_cluster", (problem(1024, 1024, 4096), swapped(72, 64, "_1x4")), (problem(1024, 1024, 4104), swapped(72, 64, "_1x4"))),
    ("cute_direct", (LARGE, swapped(72, 64, "_direct")), (problem(4096, 6145), swapped(72, 64, "_direct"))),
    ("cute_direct", (LARGE, ping_pong(128, 128, "_direct")), (LARGE, split(128, 128, 2))),
    # 33 tiles four times are one wave of 132, five times more; clusters of four have 120 SMs.
    ("cute_parts", (problem(128, 4224), split(128, 128, 5)), (problem(128, 4224), split(128, 128, 4))),
    ("cute_parts", (problem(128, 4096), split(128, 128, 4, "_1x4")), (problem(128, 4096), split(128, 128, 3, "_1x4"))),
    ("cute_parts", (problem(128, 4096, 1023), split(128, 128, 4)), (problem(128, 4096, 1024), split(128, 128, 4))),
    ("cute_fitted", (problem(128, 2680), split(128, 104, 4, "_1x4")), (problem(128, 2680), split(128, 96, 4, "_1x4"))),
    ("cute_cluster_empty", (problem(128, 4096), ping_pong(128, 128, "_2x1")), (problem(129, 4096), ping_pong(128, 128, "_2x1"))),
    ("cute_cluster_empty", (problem(512, 128), ping_pong(128, 128, "_1x2")), (problem(512, 129), ping_pong(128, 128, "_1x2"))),
    # 32 clusters of four are two waves of 30; 768 are more.
    ("cute_large_cluster", (problem(4096, 6144, 4104), ping_pong(128, 128, "_2x2")), (problem(1024, 2048, 4104), ping_pong(128, 128, "_2x2"))),
    ("cute_large_cluster", (LARGE, ping_pong(128, 128, "_2x2")), (LARGE, ping_pong(128, 128, "_2x1"))),
    # 120 tiles are one wave of 15 clusters of eight; 122 need a sixteenth.
    ("cute_large_cluster", (problem(100, 6272, 8192), together(64, 104, "_2x4")), (problem(100, 6144, 8192), together(64, 104, "_2x4"))),
    ("cute_direct", (LARGE, ping_pong(128, 128, "_direct")), (problem(4096, 6145), ping_pong(128, 128, "_direct"))),
    ("cute_direct", (LARGE, ping_pong(128, 128, "_direct")), (problem(4096, 6144, dtype_c="fp32"), ping_pong(128, 128, "_direct"))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "dropped", "kept"), CASES, ids=[f"{rule}-{n}" for n, (rule, *_) in enumerate(CASES)])
def test_rule(rule: str, dropped: tuple[GemmProblem, Config], kept: tuple[GemmProblem, Config]) -> None:
    """It drops the one, and keeps the other."""
    assert RULES[rule](*dropped, H200) is True
    assert RULES[rule](*kept, H200) is False


def one(m: int, n: int, form: str = "", stages: int = 4) -> Config:
    return made(f"cute_tcgen05{form}", m, n, 64, 8, 1, 4, stages)


# The same of tcgen05's.
SM_100 = [
    # Few rows keep the lowest tiles there are; of two programs, twice as many.
    ("cute_rows", (problem(64, 4096), one(128, 128)), (problem(1, 4096), one(64, 128))),
    ("cute_rows", (problem(128, 4096), one(256, 128, "_2cta_2x1")), (problem(1, 4096), one(128, 128, "_2cta_2x1"))),
    ("cute_width", (problem(512, 96), one(128, 128)), (problem(512, 97), one(128, 128))),
    # 128x64 a program, in 4 waves of 148 programs and one more.
    ("cute_tile_small", (problem(4096, 2432), one(256, 64, "_2cta_2x1")), (problem(4096, 1152), one(256, 64, "_2cta_2x1"))),
    ("cute_tile_small", (problem(4096, 2432), one(256, 64, "_2cta_2x1")), (problem(4096, 2432), one(256, 128, "_2cta_2x1"))),
    ("cute_stages", (LARGE, one(128, 256, "", 3)), (LARGE, one(128, 256, "", 4))),
    # 160 tiles of pairs in three waves of 74; 224 in four are nearly all.
    ("cute_wave", (problem(4096, 1600), one(256, 160, "_2cta_2x1")), (problem(4096, 1600), one(256, 128, "_2cta_2x1"))),
    ("cute_cluster_empty", (problem(256, 4096), one(256, 128, "_2cta_4x1")), (problem(257, 4096), one(256, 128, "_2cta_4x1"))),
    ("cute_direct", (problem(4096, 6144, dtype_c="fp32"), one(128, 128, "_direct")), (problem(4096, 6145), one(128, 128, "_direct"))),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "dropped", "kept"), SM_100, ids=[f"{r}-{n}" for n, (r, *_) in enumerate(SM_100)])
def test_rule_on_sm_100(rule: str, dropped: tuple[GemmProblem, Config], kept: tuple[GemmProblem, Config]) -> None:
    """It drops the one, and keeps the other."""
    assert RULES[rule](*dropped, B200) is True
    assert RULES[rule](*kept, B200) is False


@pytest.mark.parametrize("rule", sorted({rule for rule, *_ in CASES}))
def test_other_families_are_none_of_its_business(rule: str) -> None:
    """Whatever tile of whatever size."""
    for config in (Config("tiled", 64, 64, 64), Config("warp_specialized", 64, 64, 64, num_stages=3)):
        assert not RULES[rule](problem(16, 16), config, H200)


def test_every_rule_has_a_case() -> None:
    """The table above has all of them."""
    own = {name for name, rule in RULES.items() if rule.__module__ == cute.__name__}
    assert {rule for rule, *_ in CASES} == own


def test_waves_are_of_all_products() -> None:
    """Three products of a batch fill the last wave where one does not."""
    one = problem(2048, 800)
    three = GemmProblem(2048, 800, one.K, "batched_a16w16", own=(("batch_size", 3),))
    config = ping_pong(128, 160)
    assert cute.cute_wave(one, config, H200)
    assert not cute.cute_wave(three, config, H200)
