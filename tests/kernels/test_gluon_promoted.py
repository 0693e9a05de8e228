"""Kernels in Gluon that scale the products of each K-block before they add them up (templates/gemm/promote.py.j2)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from forms import FORMS, RINGS
from gluon_cases import assert_exact, block_scaled, made, product, room_for_stages
from gluon_machine import Machine
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from long_tests import LONG, drawn, in_turns, repeats, spread
from small_gemms import specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.source import ast_source, load_module

PROMOTES = [name for name in RINGS if FORMS[name].reads == "promoted"]
Own = tuple[tuple[str, int], ...]


@st.composite
def cases(draw: st.DrawFn) -> tuple[GemmProblem, Config, int]:
    """A problem with scales of some blocks, a config of some family, and a number of SMs."""
    family = draw(st.sampled_from(PROMOTES))
    facts = FORMS[family]
    warps = draw(st.sampled_from([4, 8]))
    rows = warps * draw(st.sampled_from([16, 32]))
    step = facts.sides.width_step
    width = step * draw(st.integers(1, (256 if facts.cluster_k == 1 else 96) * 64 // rows // step))
    own = {
        "block_m": draw(st.sampled_from([1, 1, 7, 16, 128])),
        "block_n": draw(st.sampled_from([8, 32, 128, 128, 200, 256])),
        "block_k": draw(st.sampled_from([128, 256, 384])),
    }
    together = draw(st.sampled_from([1, 2]))
    most = min(4 // together + 1, room_for_stages(family, rows, width, "fp32") // together)
    assume(most >= 2)
    config = made(
        family,
        *(rows, width, draw(st.integers(1, 3)) if facts.splits_k else 1, warps, draw(st.integers(2, most))),
        *(draw(st.integers(1, 3)), 2 * together),
    )
    along = 3 if facts.cluster_k == 1 else 2
    m = draw(st.integers(1, min(300, along * config.BLOCK_SIZE_M)))
    # Of swapped tiles the copy engine takes scales of fours of rows.
    m = draw(st.sampled_from([m, -(-m // 4) * 4]))
    n = 4 * draw(st.integers(1, min(300, along * config.BLOCK_SIZE_N) // 4))
    changes = {"dtype_b": draw(st.sampled_from(["fp8e4m3fn", "fp8e5m2"])), "bias": draw(st.booleans())}
    defaults = {"block_m": 1, "block_n": 128, "block_k": 128}
    chosen = tuple(sorted((name, size) for name, size in own.items() if size != defaults[name]))
    problem = block_scaled(m, n, 16 * draw(st.integers(1, 80)), own=chosen, **changes)
    assume(not legal(problem, config, gpu_for_arch("sm_90")))
    return problem, config, draw(st.integers(1, 7))


@settings(max_examples=repeats(8, 100), deadline=None)
@given(case=cases(), seed=st.integers(0, 99))
def test_any_blocks_are_exact(case: tuple[GemmProblem, Config, int], seed: int) -> None:
    """Tiles that overhang and lie across blocks, whatever their sizes; shares of K; every element of C, exactly."""
    assert_exact(product(*case, seed, largest=2))


@pytest.mark.parametrize(
    ("rows", "width", "warps"),
    [(128, 176, 8), (256, 112, 8), (128, 96, 4), (64, 192, 4), (64, 256, 4)],
)
def test_wide_tiles_lie_across_blocks_of_columns(rows: int, width: int, warps: int) -> None:
    """Two or three blocks of 128 in different places of each tile; with products in registers of their own or not."""
    config = made("warp_specialized", rows, width, 1, warps, 2, 2, 2)
    assert_exact(product(block_scaled(rows + 5, 3 * width, 400), config, 2, largest=2))


# Fours of rows, and three, two and one more; scales of K-blocks twice as long; one scale for several rows.
SCALED = [(76, ()), (75, ()), (74, ()), (73, ()), (76, (("block_k", 256),)), (75, (("block_m", 7),))]


# Families take turns, and one warpgroup and two.
@pytest.mark.parametrize(
    ("scaled", "family"), drawn([(each, name) for n, each in enumerate(SCALED) for name in in_turns(PROMOTES, 3, n)], 6)
)
def test_both_ways_of_scales_are_exact(family: str, scaled: tuple[int, Own], monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy engine takes scales of rows where each has its own for each K-block: swapped, only fours of them."""
    m, own = scaled
    taken: list[int] = []

    def copied(machine: Machine, source: int, size: int, *places: int) -> None:
        taken.append(size)
        copy_bytes(machine, source, size, *places)

    copy_bytes = Machine.copy_bytes
    monkeypatch.setattr(Machine, "copy_bytes", copied)
    for rows, warps in in_turns(((64, 4), (128, 8)), 2, SCALED.index(scaled) // 3 + PROMOTES.index(family)):
        problem = block_scaled(m, 152, 1040, own=own)
        assert_exact(product(problem, made(family, rows, 48, 1, warps, 3, together=2), 3, largest=2))
        assert bool(taken) == (not own and (m % 4 == 0 or not FORMS[family].swapped))
        taken.clear()


@pytest.mark.parametrize("family", drawn([*PROMOTES], 3))
def test_int8_is_exact(family: str) -> None:
    """Products are whole numbers, of which scales make float32."""
    for rows, warps in in_turns(((64, 4), (128, 8)), 2, PROMOTES.index(family)):
        problem = block_scaled(70, 152, 1040, dtype="int8", bias=True)
        assert_exact(product(problem, made(family, rows, 48, 1, warps, 3, together=2), 3, largest=9))


def test_the_last_scales_are_the_last() -> None:
    """Nothing beyond the last scale's line of 16 bytes is read, and nothing that this has behind the scale counts."""
    for k in (128, 130 * 16, 16):
        for family in spread(PROMOTES, 3):
            assert_exact(product(block_scaled(3, 20, k), made(family, 64, 32, 1, 4, 3, together=2), 2))


# The largest tiles of the space, and one of each kind.
COMPILED = [
    Config("warp_specialized", 256, 128, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 192, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 176, 128, 1, 1, 8, 3),
    Config("warp_specialized", 128, 128, 128, 1, 2, 8, 4),
    Config("warp_specialized", 64, 192, 128, 1, 1, 4, 4),
    Config("warp_specialized", 88, 128, 128, 1, 1, 8, 4, swapped=1),
    Config("warp_specialized", 16, 64, 256, 1, 1, 4, 4, swapped=1),
    Config("warp_specialized", 64, 128, 128, 1, 1, 8, 4, cluster_k=4, swapped=1),
]


# Two parts of rows, and swapped.
@pytest.mark.parametrize("config", COMPILED if LONG else [COMPILED[0], COMPILED[4]], ids=lambda config: config.name)
def test_sums_and_products_fit_a_threads_registers(tmp_path: Path, config: Config) -> None:
    """Nothing spills, ptxas takes no wgmma apart, and sums are complete before the next products are begun."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(gpu_for_arch("sm_90")))
    problem = GemmProblem(4096, 4096, 4096, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn", "bf16")
    module = generate(problem, [config], "sm_90")
    (tmp_path / "module.py").write_text(module.text)
    (spec,) = specs_of(module, config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        source = ast_source(load_module(str(tmp_path / "module.py")), spec)
        kernel = compiler.compile(source, target, dict(spec.options))
        sass = kernel.asm["sass"]
    assert not re.search(r"\b(?:STL|LDL)\b", sass)
    # Four products of 32 along K for each part of the rows, waited for once.
    rows, width = sides(config)
    swapped = config.swapped
    parts = rows // (16 * config.num_warps)
    # Of a narrow tile of one warpgroup those of two K-blocks are waited for at once; then there is an odd one.
    twos = rows == 16 * config.num_warps == 64 and width <= (72 if swapped else 96)
    waits = [2, 1] if twos else [1] * parts
    assert len(re.findall(r"QGMMA\.64x\d+x32", sass)) == 4 * sum(waits)
    assert sass.count("WARPGROUP.DEPBAR") == len(waits)
    # One addition for each product of the part, all of them between two waits.
    between = re.split(r"wgmma\.wait_group\.sync\.aligned 0", kernel.asm["ptx"])[1:]
    assert [len(re.findall(r"fma\.rn\.f32", text)) for text in between] == [width // 2 * sets for sets in waits]
    # The loop that fills a ring is there for the kernel and for the loading warp: of shares, once more for the first.
    # Swapped, both have another one where the copy engine cannot take scales, and lanes copy 32 of rows at a time.
    loops = 2 + (config.SPLIT_K > 1)
    of_b = parts if swapped else -(-(128 - math.gcd(width, 128) + width) // 128)
    lanes = -(-width // 32) + 1 if swapped else 0
    assert kernel.asm["ptx"].count("cp.async.bulk.shared::cluster.global") == loops
    assert kernel.asm["ptx"].count("cp.async.ca.shared.global") == loops * of_b + lanes
    assert sass.count("UTMALDG.2D") == loops * (1 + bin(width).count("1")) * (2 if swapped else 1)
    # One thread goes through it, as ptxas knows.
    assert "BRA.U.ANY" not in sass
    assert not re.search(r"\bLDG\b", sass) or config.SPLIT_K > 1
