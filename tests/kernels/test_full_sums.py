"""Kernels with full sums of fp8 (accumulate): products are added up in float32 at least every 128 along K on sm_90."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gluon_cases import assert_exact, made, problem_8_bit, product
from gluon_stand_in import run_module
from gluon_wgmma import encoded
from interpreted import Interpreter
from numpy.typing import NDArray
from small_gemms import make_module, needs_interpreter, specs_of

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.source import ast_source
from genkern.ops.accumulate import as_fast, as_full
from genkern.ops.op import get_op
from genkern.space.rules.wgmma import wgmma_accumulators

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
FULL = as_full(GemmProblem(128, 256, 1024, "a8w8", *FP8))
SM_90 = gpu_for_arch("sm_90")
TILED = Config("tiled", 64, 64, 128, 1, 2, 4, 3)
SMALL = Config("tiled", 16, 32, 128, 1, 1, 4, 3)
TRITON = [
    TILED,
    Config("tiled", 16, 32, 64, 1, 1, 4, 3, swapped=1, reduce="semaphore"),
    Config("tiled_tma", 64, 64, 128, 1, 1, 4, 3),
    Config("persistent_tma", 64, 64, 64, 1, 1, 4, 3),
]
GLUON = [
    # Products of two buffers at once; of half of the rows at a time; in the place of those before.
    made("warp_specialized", 64, 16, 1, 4, 4, 1, 2),
    made("warp_specialized", 128, 32, 2, 4, 3, 1, 2),
    made("warp_specialized", 64, 144, 1, 4, 2, 1, 2),
    made("warp_specialized_swapped", 128, 24, 1, 8, 3, 1, 2),
    made("warp_specialized_swapped_cluster2", 64, 24, 1, 4, 3, 1, 2),
]


def digests(problem: GemmProblem, config: Config, arch: str) -> dict[str, str]:
    return generate(problem, [config], arch).source_sha256


@pytest.mark.parametrize("config", TRITON + GLUON, ids=lambda config: config.name)
def test_full_sums_have_kernels_of_their_own_where_few_bits_are_kept(config: Config) -> None:
    fast, full = (digests(problem, config, "sm_90") for problem in (as_fast(FULL), FULL))
    assert fast != full
    # What adds up splits does so in float32 anyway.
    assert all(fast[name] == full[name] for name in fast if name == "reduce_splits")
    if config in TRITON:
        assert digests(FULL, config, "sm_100") == digests(as_fast(FULL), config, "sm_100")


@pytest.mark.parametrize("config", [Config("gemv", 1, 16, 128), Config("skinny", 4, 32, 128, 1, 2, 4, 1)])
def test_kernels_without_matrix_units_make_full_sums_anyway(config: Config) -> None:
    problem = as_full(GemmProblem(1, 256, 1024, "a8w8", *FP8))
    assert digests(problem, config, "sm_90") == digests(as_fast(problem), config, "sm_90")


def test_a_step_of_the_matrix_units_is_no_longer_than_128() -> None:
    """Of kernels in Triton; a buffer of the others is 128 long. Nowhere else is there a limit."""
    longer = TILED.with_values(BLOCK_SIZE_K=256)
    assert "BLOCK_SIZE_K is above 128" in legal(FULL, longer, SM_90)
    assert not legal(as_fast(FULL), longer, SM_90)
    assert not legal(FULL, longer, gpu_for_arch("gfx950"))
    assert not legal(FULL, made("warp_specialized", 64, 64, 1, 4, 2, 1, 4), SM_90)
    beside = Config("warp_specialized", 128, 128, 128, 1, 1, 8, 3, cluster="2x1")
    assert "accumulate: fast" in legal(FULL, beside, SM_90)
    assert not legal(as_fast(FULL), beside, SM_90)


def test_products_take_registers_beside_sums() -> None:
    wide = Config("warp_specialized", 128, 256, 128, 1, 1, 8, 3)
    assert wgmma_accumulators(FULL, wide, SM_90)
    assert not wgmma_accumulators(as_fast(FULL), wide, SM_90)
    assert not wgmma_accumulators(FULL, Config("warp_specialized", 128, 128, 128, 1, 1, 8, 3), SM_90)


def test_triton_promotes_in_the_main_loop(tmp_path: Path) -> None:
    """Four wgmma of 32 along K into registers of their own, which are waited for, and one addition each."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget(*triton_target(SM_90))
    generated, module = make_module(tmp_path, FULL, [TILED], arch="sm_90")
    spec = specs_of(generated, TILED)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path))
        source = ast_source(module, spec)
        ptx = compiler.compile(source, target=target, options=dict(spec.options)).asm["ptx"]
    (loop,) = re.findall(r"(wgmma\.fence.*?bra)", ptx, re.DOTALL)[:1]
    assert loop.count("wgmma.mma_async") == 4
    additions = re.findall(r"add(?:\.rn)?\.f32\s+%\w+, (%\w+), (%\w+);", loop)
    # 64x64 elements of 128 threads.
    assert len(additions) == 32
    made_there = set(re.findall(r"%\w+", re.search(r"mma_async[^{]*\{([^}]*)\}", loop)[1]))  # type: ignore[index]
    assert len(made_there) == 32
    assert "wgmma.wait_group.sync.aligned 0" in loop


@lru_cache(maxsize=2)
def wide_operands(m: int, n: int, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """A [m, k] and B [k, n] of the check's round for full sums."""
    torch = pytest.importorskip("torch")
    from genkern.profiling.checking.wide_sums import of_a, of_b

    a, b, *_ = get_op("a8w8").operands(GemmProblem(m, n, k, "a8w8", *FP8))
    generator = torch.Generator().manual_seed(5)
    return of_a("cpu", a, generator).float().numpy(), of_b("cpu", b, generator).float().numpy()


def by_stand_in(problem: GemmProblem, config: Config) -> bool:
    """Whether the kernel's C is the exact product, by matrix units that keep 14 bits."""
    a, b = wide_operands(problem.M, problem.N, problem.K)
    operands = {"a": encoded(a, "e4m3"), "b": encoded(b.T, "e4m3").T}
    operands |= {"scale_a": np.full(1, 0.5, np.float32), "scale_b": np.full(1, 4.0, np.float32)}
    operands["c"] = np.full((problem.M, problem.N), np.nan, np.float32)
    found = run_module(generate(problem, [config], "sm_90").text, config.name, operands, 3, 0)
    return np.array_equal(found["c"].astype(np.float64), 2.0 * a.astype(np.float64) @ b.astype(np.float64))


@pytest.mark.parametrize("config", GLUON, ids=lambda config: config.name)
def test_gluon_sums_are_full_and_would_not_be(config: Config) -> None:
    """On a stand-in whose matrix units keep 14 bits; the kernel of the fast problem shows that it does."""
    m, n = (16, 56) if config.swapped else (56, 16)
    problem = as_full(problem_8_bit(m, n, 512, "fp8e4m3fn", "fp8e4m3fn"))
    assert by_stand_in(problem, config)
    if config == GLUON[0]:
        assert not by_stand_in(as_fast(problem), config)


def test_gluon_sums_are_exact_where_k_ends_within_a_buffer() -> None:
    problem = as_full(problem_8_bit(65, 24, 400, "fp8e4m3fn", "fp8e5m2", bias=True))
    assert_exact(product(problem, GLUON[0], 2, 3, largest=2))


@needs_interpreter
@pytest.mark.parametrize("config", [SMALL, TRITON[1]], ids=lambda config: config.name)
def test_the_check_tells_fast_kernels_from_full_ones(interpreter: Interpreter, config: Config) -> None:
    """Interpreted with products that are added up in 14 bits: a fast kernel is wrong for a full problem alone."""
    full = as_full(GemmProblem(5, 24, 400, "a8w8", *FP8))
    verdict = interpreter.check(full, config, arch="sm_90", few_bits=True)
    assert verdict["passed"], verdict["message"]
    assert "sums" in verdict["rounds"]
    assert interpreter.check(as_fast(full), config, arch="sm_90", few_bits=True)["passed"]
    if config == SMALL:
        fault = ("acc += tl.dot(a, b, max_num_imprecise_acc=BLOCK_SIZE_K)", "acc = tl.dot(a, b, acc)")
        verdict = interpreter.check(full, config, fault, arch="sm_90", few_bits=True)
        assert not verdict["passed"]
        assert verdict["message"].startswith("exact inputs that need float32 sums: C[")
