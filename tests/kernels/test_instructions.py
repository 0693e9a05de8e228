"""What the families' kernels compile to: real compiles for every target, and instructions that their design rests on.

Families that are in other tests' compiles already (test_compiler.py) are not here.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forms import FORMS
from forms import made as of_form
from long_tests import drawn, in_turns, spread
from small_gemms import make_module, specs_of

from genkern.compile.binary.code_object import read_resources
from genkern.compile.occupancy import fits
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sides, traits_of
from genkern.kernels.contract.gluon_tile import buffer_bytes
from genkern.kernels.legality import legal
from genkern.kernels.refusal import compiler_message
from genkern.kernels.source import ast_source
from genkern.space.rules.registry import RULES

CDNA3 = ("gfx942", "gfx950")
# Each family has every second one, and each one about half of the families, but for `make test-long`.
ARCHS = ("gfx90a", *CDNA3, "gfx1201", "sm_80", "sm_90", "sm_100")
TRITON = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
# Divided by every block of the configs below but in M, as odd sizes of M are the usual ones.
PROBLEM = GemmProblem(13, 512, 4096, bias=True)
MATRIX = {
    "gfx90a": r"v_mfma_f32_\d+x\d+x8_?bf16|v_mfma_f32_\d+x\d+x16_?bf16",
    "gfx942": r"v_mfma_f32_(16x16x16|32x32x8)_bf16",
    "gfx950": r"v_mfma_f32_(16x16x32|32x32x16)_bf16",
    "gfx1201": r"v_wmma_f32_16x16x16_bf16",
    "sm_80": r"mma\.sync\.aligned\.m16n8k16",
    "sm_90": r"wgmma\.mma_async\.sync\.aligned\.m64n(16|64)k16",
    "sm_100": r"tcgen05\.mma\.cta_group::1\.kind::f16",
}
# One warpgroup and two, of 64 rows each or 128, upright and swapped, whole tiles and shares of them.
GLUON_CONFIGS = [
    Config("warp_specialized", 64, 48, 64, 4, 3, 4, 8),
    Config("warp_specialized", 128, 176, 64, 4, 1, 8, 4),
    Config("warp_specialized", 128, 112, 64, 4, 1, 4, 5),
    Config("warp_specialized", 256, 80, 64, 4, 3, 8, 4),
    Config("warp_specialized", 8, 64, 64, 1, 3, 4, 12, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 9, swapped=1),
    Config("warp_specialized", 104, 128, 64, 1, 3, 4, 5, swapped=1),
    Config("warp_specialized", 248, 128, 64, 1, 1, 8, 3, swapped=1),
]
SPECIALIZED = [
    Config("persistent_tma", 64, 64, 64, 4, 1, 4, 4, specialized=1),
    Config("persistent_tma", 128, 128, 64, 4, 1, 4, 3, specialized=1),
    Config("persistent_tma", 128, 256, 64, 4, 1, 8, 2, specialized=1),
    Config("persistent_tma", 256, 128, 32, 4, 1, 8, 6, specialized=1),
]
SPECIALIZED_PROBLEMS = [
    GemmProblem(1000, 2112, 7168, activation="gelu"),
    GemmProblem(1000, 2112, 7168, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16", row_major_b=True),
]
B200 = gpu_for_arch("sm_100")
Texts = dict[str, str]
Kernels = dict[str, Any]


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, GemmProblem, Config], Kernels]:
    """Compiles the kernels of a config, and gives them by name."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")

    def compile_all(arch: str, problem: GemmProblem, config: Config) -> Kernels:
        module, loaded = make_module(tmp_path, problem, [config], arch)
        made = {}
        for spec in specs_of(module, config):
            source = ast_source(loaded, spec)
            made[spec.function] = compiler.compile(
                source, target(*triton_target(gpu_for_arch(arch))), dict(spec.options)
            )
        return made

    return compile_all


@pytest.fixture
def compiled(kernels: Callable[..., Kernels]) -> Callable[[str, GemmProblem, Config], Texts]:
    """As above, but gives their assembly texts."""

    def texts(arch: str, problem: GemmProblem, config: Config) -> Texts:
        kind = "amdgcn" if arch.startswith("gfx") else "ptx"
        return {name: kernel.asm[kind] for name, kernel in kernels(arch, problem, config).items()}

    return texts


@pytest.fixture(scope="module")
def gluon_made() -> dict[tuple[GemmProblem, Config], Any]:
    """The kernels in Gluon that were compiled so far: two tests look at each."""
    return {}


@pytest.fixture
def gluon_kernel(
    kernels: Callable[..., Kernels], gluon_made: dict[tuple[GemmProblem, Config], Any], monkeypatch: pytest.MonkeyPatch
) -> Callable[[GemmProblem, Config], Any]:
    """Compiles the one kernel of a config in Gluon, legal or not, unless it is there."""
    monkeypatch.setattr("genkern.kernels.generate.require_legal", lambda *_: None)

    def compile_one(problem: GemmProblem, config: Config) -> Any:
        if (problem, config) not in gluon_made:
            (gluon_made[problem, config],) = kernels("sm_90", problem, config).values()
        return gluon_made[problem, config]

    return compile_one


def gluon_problem(dtype: str, dtype_c: str) -> GemmProblem:
    """What kernels in Gluon end in is as long as it gets: a bias and the longest activation."""
    return GemmProblem(100, 2112, 7168, "a16w16", dtype, dtype, dtype_c, bias=True, activation="gelu")


RING_SMALLER = "the ring must be larger than the part of C in shared memory"


def behind_ring_bytes(llir: str) -> int:
    """How far behind the start of shared memory Triton's own first use of it lies: behind the ring."""
    uses = re.findall(r"@global_smem(?! = external)(?:, i32 (\d+))?", llir)
    assert uses
    return min(int(offset or 0) for offset in uses)


def main_text(texts: Texts) -> str:
    """The text of the kernel that multiplies."""
    (text,) = (text for name, text in texts.items() if name.startswith("matmul_"))
    return text


def in_order(text: str, *patterns: str) -> bool:
    """Whether each pattern matches somewhere after the one before it."""
    position = 0
    for pattern in patterns:
        match = re.compile(pattern).search(text, position)
        if match is None:
            return False
        position = match.end()
    return True


def counts_arrivals(text: str, arch: str) -> bool:
    """Whether stores come before a barrier, and that before an atomic that releases and acquires for the whole GPU."""
    if arch.startswith("sm_"):
        return in_order(text, r"st\.global", r"bar\.sync", r"atom\.global\.gpu\.acq_rel\.add", r"ld\.global\.cg")
    if arch == "gfx1201":
        wait = (r"s_wait_storecnt 0x0", r"s_barrier_signal")
        return in_order(text, r"_store_b", *wait, r"global_atomic_add.*SCOPE_DEV", r"global_inv scope:SCOPE_DEV")
    # With an L2 for each XCD, other units see stores that were written back, and loads that found nothing stale.
    release = (r"buffer_wbl2 sc1",) if arch in CDNA3 else ()
    acquire = r"buffer_inv sc1" if arch in CDNA3 else r"buffer_wbinvl1"
    wait = r"s_waitcnt vmcnt\(0\)"
    return in_order(text, r"buffer_store_dword", "s_barrier", *release, wait, r"global_atomic_add ", wait, acquire)


@pytest.mark.parametrize("arch", drawn(["sm_80", "sm_90", "sm_100"], 1))
def test_reduction_starts_early(kernels: Callable[..., Kernels], arch: str) -> None:
    """From sm_90 on it is a dependent launch that waits before it reads; the splits let it come, and do not wait."""
    made = kernels(arch, GemmProblem(100, 1000, 1024), Config("tiled", 64, 64, 64, 1, 4, 4, 3))
    splits, reduction = made.values()
    early = arch != "sm_80"
    assert bool(reduction.metadata.launch_pdl) is early
    assert not splits.metadata.launch_pdl
    assert ("griddepcontrol.launch_dependents" in splits.asm["ptx"]) is early
    assert "griddepcontrol.wait" not in splits.asm["ptx"]
    assert in_order(reduction.asm["ptx"], r"griddepcontrol\.wait", r"ld\.global") is early
    if early:
        before = reduction.asm["ptx"].split("griddepcontrol.wait")[0]
        assert "ld.global" not in before


@pytest.mark.parametrize("arch", spread(ARCHS, 4))
def test_sums_within_the_kernel(compiled: Callable[..., Texts], arch: str) -> None:
    """Matrix instructions, and partial sums that a tile's last program can see."""
    texts = compiled(arch, PROBLEM, Config("tiled", 64, 64, 32, 1, 4, 4, 2, reduce="semaphore"))
    assert len(texts) == 1
    assert re.search(MATRIX[arch], main_text(texts))
    assert counts_arrivals(main_text(texts), arch)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_split_tma(compiled: Callable[..., Texts], arch: str) -> None:
    """Both operands through the copy engine, sums that nobody counts, and a reduction that is there before they are."""
    texts = compiled(arch, PROBLEM, Config("tiled_tma", 64, 64, 64, 1, 4, 4, 3, reduce="kernel"))
    assert list(texts) == ["matmul_split_tma_split_mask_m", "reduce_splits"]
    text = main_text(texts)
    assert text.count("cp.async.bulk.tensor.2d") >= 2
    assert re.search(MATRIX[arch], text)
    assert not counts_arrivals(text, arch)
    assert "griddepcontrol.launch_dependents" in text
    assert "griddepcontrol.wait" in texts["reduce_splits"]


@pytest.mark.parametrize("arch", in_turns(ARCHS, 4, 1))
def test_tiled_swapped(compiled: Callable[..., Texts], arch: str) -> None:
    """16 rows of A are the short side of the matrix instruction: wgmma on sm_90, tcgen05 on sm_100."""
    text = main_text(compiled(arch, PROBLEM, Config("tiled", 16, 64, 32, 1, 4, 4, 3, reduce="semaphore", swapped=1)))
    assert re.search(MATRIX[arch], text)
    assert counts_arrivals(text, arch)


@pytest.mark.parametrize(("arch", "block_m"), drawn([("sm_90", 16), ("sm_90", 8), ("sm_100", 16)], 1))
def test_tiled_tma_swapped(compiled: Callable[..., Texts], arch: str, block_m: int) -> None:
    """Operands by the copy engine; 8 rows are wgmma's from Triton 3.9 on, and mma.sync's before."""
    text = main_text(compiled(arch, PROBLEM, Config("tiled_tma", block_m, 64, 64, 1, 4, 4, 3, swapped=1)))
    assert "cp.async.bulk.tensor.2d" in text
    assert counts_arrivals(text, arch)
    if block_m == 8:
        assert ("wgmma.mma_async.sync.aligned.m64n8k16" if TRITON >= (3, 9) else "mma.sync.aligned.m16n8k16") in text
    else:
        assert re.search(MATRIX[arch], text)


@pytest.mark.parametrize(
    ("problem", "config"),
    # The widest tile, and one of the usual, each with one of the problems.
    drawn(
        [
            *((SPECIALIZED_PROBLEMS[0], config) for config in in_turns(SPECIALIZED, 4, 2)),
            *((SPECIALIZED_PROBLEMS[1], config) for config in in_turns(SPECIALIZED, 4, 1)),
        ],
        1,
    ),
    ids=lambda value: value.name,
)
def test_persistent_tma_specialized(kernels: Callable[..., Kernels], config: Config, problem: GemmProblem) -> None:
    """On sm_100 tcgen05 multiplies, a warpgroup is added for loads, and registers go from it to the others.

    All threads together have no more registers than the SM, and the tensor memory that it has. And the rule about
    shared memory counts what Triton allocates, or at most 128 bytes more.
    """
    (kernel,) = kernels("sm_100", problem, config).values()
    ptx, warps = kernel.asm["ptx"], config.num_warps + traits_of(config).helper_warps
    assert re.search(r"tcgen05\.mma", ptx)
    assert "cp.async.bulk.tensor.2d" in ptx
    assert "mma.sync" not in ptx
    assert {"setmaxnreg.inc", "setmaxnreg.dec"} <= set(re.findall(r"setmaxnreg\.\w+", ptx))
    assert kernel.metadata.num_warps == warps
    (registers,) = map(int, re.findall(r"\.maxnreg\s+(\d+)", ptx))
    assert 32 * warps * registers <= B200.registers_per_unit
    assert kernel.metadata.tmem_size <= 512
    drop = RULES["shared_memory_warpgroup"]
    tight, roomy = (replace(B200, shared_bytes_per_block=kernel.metadata.shared + more) for more in (-1, 128))
    assert (drop(problem, config, tight), drop(problem, config, roomy)) == (True, False)
    resources = read_resources(kernel.asm["cubin"], "cuda", kernel.metadata.shared)
    assert fits(resources, warps, B200) == ""
    assert resources.spills == 0


@pytest.mark.parametrize(("arch", "warps", "shared_out"), [("sm_90", 4, False), ("sm_120", 8, True)])
def test_specialized_loops_are_for_sm_100(
    kernels: Callable[..., Kernels], arch: str, warps: int, shared_out: bool
) -> None:
    """sm_90 compiles such a loop as any other, and sm_120 adds warps that take registers from mma.sync's: a rule."""
    (kernel,) = kernels(
        arch, GemmProblem(256, 512, 4096), Config("persistent_tma", 128, 64, 64, 8, 1, 4, 3, specialized=1)
    ).values()
    assert kernel.metadata.num_warps == warps
    assert ("setmaxnreg" in kernel.asm["ptx"]) is shared_out
    assert "tcgen05" not in kernel.asm["ptx"]


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        *((config, "bf16") for config in spread(GLUON_CONFIGS, 8)),
        *((config, "fp16") for config in spread(GLUON_CONFIGS[1::6], 2)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_gluon_multiplies_by_one_wide_wgmma(gluon_kernel: Callable[..., Any], config: Config, dtype: str) -> None:
    """Four wgmma of the tile's width for each 64 rows, none waited for alone, and nothing spilled in between."""
    kernel = gluon_kernel(gluon_problem(dtype, "bf16"), config)
    rows, width = sides(config)
    halves = rows // (16 * config.num_warps)
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.([\w.]+)", kernel.asm["ptx"])
    ptx = {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert found == [f"m64n{width}k16.f32.{ptx}.{ptx}"] * (4 * halves)
    sass = [line for line in kernel.asm["sass"].splitlines() if re.search(r"HGMMA|LDL|STL", line)]
    products = [number for number, line in enumerate(sass) if "HGMMA" in line]
    assert products == list(range(products[0], products[0] + 4 * halves))
    # Were accumulators moved between them, ptxas would have each one wait (gsb0), not the last alone.
    assert [number for number in products if "gsb0" in sass[number]] == products[-1:]
    assert all(f"HGMMA.64x{width}x16.F32" in sass[number] for number in products)
    assert len(sass) == len(products)


@pytest.mark.parametrize(
    ("config", "dtype_c"),
    [
        *((config, "bf16") for config in spread(GLUON_CONFIGS, 8)),
        *((config, "fp32") for config in spread(GLUON_CONFIGS[3::4], 2)),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_gluon_ring_is_first_in_shared_memory(gluon_kernel: Callable[..., Any], config: Config, dtype_c: str) -> None:
    """The kernels' PTX takes the ring to begin where shared memory does: all else lies behind it and its barriers.

    And the rule about shared memory counts what Triton allocates, or at most 1 KiB more; legality, at most 1 KiB less.
    """
    problem = gluon_problem("bf16", dtype_c)
    kernel = gluon_kernel(problem, config)
    assert behind_ring_bytes(kernel.asm["llir"]) == config.num_stages * buffer_bytes(*sides(config)) + 1024
    drop, gpu = RULES["wgmma_shared_memory"], gpu_for_arch("sm_90")
    tight, roomy = (replace(gpu, shared_bytes_per_block=kernel.metadata.shared + more) for more in (-1, 1024))
    assert (drop(problem, config, tight), drop(problem, config, roomy)) == (True, False)
    enough, short = (replace(gpu, shared_bytes_per_block=kernel.metadata.shared - less) for less in (0, 1024))
    assert legal(problem, config, enough) == ""
    assert "bytes of shared memory" in legal(problem, config, short)


@pytest.mark.parametrize(
    "config",
    drawn(
        [
            Config("warp_specialized", 128, 256, 64, 1, 1, 8, 2),
            Config("warp_specialized", 256, 128, 64, 1, 1, 8, 2, swapped=1),
        ],
        1,
    ),
    ids=lambda config: config.name,
)
def test_gluon_refuses_a_tile_larger_than_its_ring(gluon_kernel: Callable[..., Any], config: Config) -> None:
    """A tile of C that would take the ring's place in shared memory is not legal; half of it, in 16 bits, is."""
    problem = GemmProblem(1024, 2048, 4096)
    llir = gluon_kernel(problem, config).asm["llir"]
    assert behind_ring_bytes(llir) == 2 * buffer_bytes(*sides(config)) + 1024
    with pytest.raises(Exception, match="GROUP_SIZE_M") as refused:
        gluon_kernel(replace(problem, dtype_c="fp32"), config)
    assert "the ring must be the largest allocation" in compiler_message(refused.value)
    assert [legal(replace(problem, dtype_c=c), config, None) for c in ("bf16", "fp32")] == ["", RING_SMALLER]


@pytest.mark.parametrize(
    ("family", "split_k"),
    drawn(spread([(f"warp_specialized{way}", split_k) for split_k in (1, 2) for way in ("", "_swapped")], 3), 1),
)
def test_gluon_loader_begins_a_turn_where_the_kernel_left_off(
    gluon_kernel: Callable[..., Any], family: str, split_k: int
) -> None:
    """The first K-block that is loaded is chosen for each turn anew: what is carried from turn to turn Triton may drop.

    Triton 3.6 and 3.7 take a number that a loop carries for dead when all that asks for it is another loop's range.
    """
    bm, bn = (112, 128) if FORMS[family].swapped else (128, 112)
    ttgir = gluon_kernel(GemmProblem(500, 7168, 2048), of_form(family, bm, bn, 64, 1, split_k, 4, 6)).asm["ttgir"]
    starts = re.findall(r"scf\.for %\w+ = (%\w+)[ #]", ttgir)
    made = re.findall(rf"{re.escape(starts[-1])}(?::\d+)? = (.*)", ttgir)[-1]
    by = [made, *(line for name in re.findall(r"%\w+", made) for line in re.findall(rf"{name} = (.*)", ttgir)[-1:])]
    assert any("arith.select" in line for line in by), by


@pytest.mark.parametrize("arch", in_turns(ARCHS, 4, 0))
def test_skinny(compiled: Callable[..., Texts], arch: str) -> None:
    """B comes 16 bytes at a time, to be evicted first, and A at once where it is needed: not through shared memory."""
    warp_size = gpu_for_arch(arch).warp_size
    text = main_text(compiled(arch, PROBLEM, Config("skinny", 16, 1, 16 * warp_size, 1, 2, 2, 1)))
    loop = text.partition("s_barrier" if arch.startswith("gfx") else "bar.sync")[0]
    assert "Loop Header" in loop or re.search(r"@%p\d+ bra", loop) or "s_cbranch" in loop
    if arch.startswith("sm_"):
        assert re.search(r"ld\.global\.L1::evict_first\S*\.v4\.b32", loop)
        assert loop.count("ld.global.v4.b32") >= 16
        assert "st.shared" not in loop.partition("shfl")[0]
    else:
        assert len(re.findall(r"_load_(dwordx4|b128)", loop)) >= 17
        assert counts_arrivals(text, arch)
