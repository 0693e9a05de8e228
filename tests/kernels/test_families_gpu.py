"""Numerics of every kernel family on a GPU, through the generated module: products, long sums, repeatability."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from forms import CUTE_FORMS, FORMS, made
from interpreted import fitted, takes
from small_gemms import make_module

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_arch
from genkern.gemm.problem import ACTIVATIONS, GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.ops.op import get_op
from genkern.profiling.checking.interpret import module_subject
from genkern.profiling.checking.verdict import Checking, worst_row_error

pytestmark = pytest.mark.gpu

CONFIGS = [
    Config("tiled", 64, 64, 64, 4, 1, 4, 3),
    Config("tiled", 16, 64, 64, 1, 5, 4, 3),
    Config("tiled", 64, 64, 64, 4, 1, 4, 1, xcd_remap=1, cache_modifier=".cg"),
    Config("tiled", 16, 64, 64, 1, 5, 4, 1, xcd_remap=1),
    Config("tiled_tma", 64, 64, 64, 8, 1, 4, 4),
    Config("tiled_tma", 16, 64, 128, 1, 4, 4, 4),
    Config("tiled_tma", 64, 32, 64, 1, 3, 4, 4),
    Config("tiled_tma", 64, 128, 64, 1, 5, 4, 4, reduce="kernel"),
    Config("tiled_tma", 128, 64, 64, 4, 1, 8, 3, reduce="kernel"),
    Config("persistent_tma", 128, 128, 64, 8, 1, 8, 3),
    Config("persistent_tma", 128, 128, 64, 8, 1, 4, 3, specialized=1),
    Config("persistent_tma", 64, 64, 64, 4, 1, 8, 4, specialized=1),
    Config("warp_specialized", 64, 64, 64, 4, 1, 4, 8),
    Config("warp_specialized", 128, 160, 64, 4, 1, 8, 3),
    Config("warp_specialized", 64, 112, 64, 4, 1, 4, 6),
    Config("warp_specialized", 64, 112, 64, 8, 4, 4, 6),
    Config("warp_specialized", 128, 176, 64, 1, 2, 8, 3),
    Config("warp_specialized", 256, 80, 64, 1, 1, 8, 3),
    Config("warp_specialized", 128, 192, 64, 4, 1, 8, 3),
    Config("warp_specialized", 64, 240, 64, 4, 1, 4, 4),
    Config("warp_specialized", 128, 80, 64, 4, 2, 4, 5),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 8, swapped=1),
    Config("warp_specialized", 8, 64, 64, 1, 5, 4, 12, swapped=1),
    Config("warp_specialized", 232, 64, 64, 4, 2, 4, 4, swapped=1),
    Config("warp_specialized", 136, 128, 64, 4, 2, 8, 4, swapped=1),
    Config("warp_specialized", 184, 128, 64, 1, 1, 8, 3, swapped=1),
    Config("warp_specialized", 48, 128, 64, 4, 1, 4, 6, swapped=1),
    Config("warp_specialized", 24, 64, 256, 1, 1, 4, 3, swapped=1),
    Config("warp_specialized", 16, 128, 256, 1, 3, 8, 3, swapped=1),
    Config("warp_specialized", 104, 64, 128, 1, 1, 4, 4, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 8, cluster_k=2, swapped=1),
    Config("warp_specialized", 40, 128, 64, 2, 1, 4, 6, cluster_k=2, swapped=1),
    Config("warp_specialized", 96, 128, 64, 1, 1, 8, 3, cluster_k=2, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 6, cluster_k=3, swapped=1),
    Config("warp_specialized", 40, 128, 64, 2, 1, 4, 5, cluster_k=3, swapped=1),
    Config("warp_specialized", 24, 128, 64, 1, 1, 8, 6, cluster_k=3, swapped=1),
    Config("warp_specialized", 40, 64, 64, 1, 1, 4, 6, cluster_k=5, swapped=1),
    Config("warp_specialized", 24, 128, 64, 2, 1, 4, 5, cluster_k=5, swapped=1),
    Config("warp_specialized", 16, 128, 64, 1, 1, 8, 5, cluster_k=5, swapped=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 5, cluster_k=4, swapped=1),
    Config("warp_specialized", 56, 128, 64, 2, 1, 4, 4, cluster_k=4, swapped=1),
    Config("warp_specialized", 8, 128, 256, 1, 1, 8, 3, cluster_k=4, swapped=1),
    Config("warp_specialized", 24, 64, 64, 1, 1, 4, 6, cluster_k=8, swapped=1),
    Config("warp_specialized", 16, 128, 64, 1, 1, 4, 5, cluster_k=8, swapped=1),
    Config("warp_specialized", 32, 128, 64, 1, 1, 8, 3, cluster_k=8, swapped=1),
    Config("warp_specialized", 64, 112, 64, 2, 1, 4, 5, cluster="2x1"),
    Config("warp_specialized", 64, 128, 64, 2, 1, 4, 5, cluster="2x1"),
    Config("warp_specialized", 128, 192, 64, 4, 1, 8, 3, cluster="2x1"),
    Config("warp_specialized", 128, 80, 64, 1, 1, 4, 4, cluster="2x1"),
    Config("warp_specialized", 256, 96, 64, 2, 1, 8, 2, cluster="2x1"),
    Config("warp_specialized", 128, 256, 64, 4, 1, 8, 4, cluster="2x1"),
    Config("warp_specialized", 64, 80, 64, 2, 1, 4, 6, cluster="1x2"),
    Config("warp_specialized", 128, 144, 64, 4, 1, 8, 3, cluster="1x2"),
    Config("warp_specialized", 128, 64, 64, 1, 1, 4, 5, cluster="1x2"),
    Config("warp_specialized", 256, 80, 64, 2, 1, 8, 3, cluster="1x2"),
    Config("warp_specialized", 104, 64, 64, 2, 1, 4, 6, cluster="2x1", swapped=1),
    Config("warp_specialized", 152, 128, 64, 4, 1, 8, 3, cluster="2x1", swapped=1),
    Config("warp_specialized", 88, 128, 64, 1, 1, 4, 5, cluster="2x1", swapped=1),
    Config("warp_specialized", 112, 64, 64, 2, 1, 4, 6, cluster="1x2", swapped=1),
    Config("warp_specialized", 192, 128, 64, 4, 1, 8, 3, cluster="1x2", swapped=1),
    Config("warp_specialized", 128, 128, 64, 1, 1, 4, 3, cluster="1x2", swapped=1),
    Config("tiled_tma", 128, 128, 64, 8, 1, 8, 4, realigned=1),
    Config("tiled_tma", 64, 256, 64, 4, 1, 4, 3, realigned=1),
    Config("tiled_tma", 64, 128, 64, 4, 5, 4, 4, reduce="kernel", realigned=1),
    Config("tiled_tma", 128, 64, 128, 1, 3, 8, 3, reduce="kernel", realigned=1),
    Config("warp_specialized", 128, 160, 64, 4, 1, 8, 3, realigned=1),
    Config("warp_specialized", 64, 112, 64, 4, 1, 4, 6, realigned=1),
    Config("warp_specialized", 184, 128, 64, 1, 1, 8, 3, swapped=1, realigned=1),
    Config("warp_specialized", 104, 64, 64, 1, 1, 4, 6, swapped=1, realigned=1),
    Config("gemv", 1, 4, 512, 1, 1, 4, 1),
    Config("gemv", 1, 1, 8192, 1, 1, 8, 1),
    Config("tiled", 64, 64, 64, 4, 3, 4, 3, reduce="semaphore"),
    Config("tiled", 128, 128, 64, 8, 1, 8, 3, reduce="semaphore"),
    Config("tiled", 16, 128, 64, 1, 4, 4, 3, reduce="semaphore", swapped=1),
    Config("tiled", 8, 64, 128, 1, 1, 4, 3, reduce="semaphore", swapped=1),
    Config("tiled_tma", 16, 128, 64, 1, 4, 4, 3, swapped=1),
    Config("tiled_tma", 8, 64, 128, 1, 1, 4, 3, swapped=1),
    Config("skinny", 1, 4, 1024, 1, 2, 4, 1),
    Config("skinny", 16, 2, 1024, 1, 1, 4, 1),
]
# A form that has no config above still has one here, but for skinny_dot, whose weights have fewer bits than A
# (tests/kernels/test_skinny_dot.py).
HERE = {*CUTE_FORMS, *(traits_of(config).stem for config in CONFIGS), "skinny_dot"}
CONFIGS += [made(name, 64, 64, 64, 4, 1, 4, 3) for name in FORMS if name not in HERE]
# Those of which several programs make one tile.
SHARING = [config for config in CONFIGS if config.SPLIT_K > 1]
LARGE_K = 262_144
SMALL_K = 256
SHORT_SUMS = GemmProblem(64, 128, SMALL_K, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32")
LONG_SUMS = GemmProblem(64, 128, LARGE_K, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32")
# Enough calls for programs to end in many orders.
RUNS = 100
SIZES = [(1, 4096, 4096), (1, 1000, 1208), (16, 1280, 8192), (100, 2112, 1000), (256, 6144, 4096), (1000, 1111, 520)]


TYPES = [("a16w16", "bf16", "bf16"), ("a16w16", "fp16", "fp32"), ("a8w8", "int8", "bf16"), ("a8w8", "fp8", "bf16")]
# Weights as they usually lie for every size, the other layouts for one.
LAYOUTS = [(size, (True, False)) for size in SIZES]
LAYOUTS += [((96, 2112, 1008), layout) for layout in ((True, True), (False, False), (False, True))]
# Rows of A and B off 16 bytes, those of C not.
LAYOUTS += [((96, 2112, 1009), (True, False))]


def arch() -> str:
    return detect_arch() or "sm_90"


def on_gpu(folder: Path, problem: GemmProblem, *configs: Config) -> tuple[ModuleType, dict[str, Any]]:
    """The generated module with its operands on the GPU, C filled with NaN."""
    _, module = make_module(folder, problem, configs, arch())
    operands: dict[str, Any] = module.make_operands("cuda")
    operands["c"].fill_(float("nan"))
    return module, operands


@pytest.mark.parametrize(("size", "layout"), LAYOUTS, ids=str)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_families_agree_with_the_reference(
    tmp_path: Path, types: tuple[str, str, str], layout: tuple[bool, bool], size: tuple[int, int, int]
) -> None:
    """Every config that the rules allow for a problem computes it, with and without a bias, and writes all of C."""
    import torch

    op, operand, out = types
    if operand == "fp8":
        operand = "fp8e4m3fnuz" if arch() == "gfx942" else "fp8e4m3fn"
    problem = GemmProblem(*size, op, operand, operand, out, *layout, bias=size[0] % 16 == 0)
    configs = [config for config in CONFIGS if takes(problem, config, arch())]
    module, operands = on_gpu(tmp_path, problem, *configs)
    module.check(list(module.CONFIGS), operands)
    torch.cuda.synchronize()


CHECKED = [(1, 1000, 1208), (100, 2112, 1000), (256, 6144, 4096), (513, 1009, 4097), (64, 128, 28672)]


@pytest.mark.parametrize("size", CHECKED, ids=str)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_families_pass_the_check(tmp_path: Path, types: tuple[str, str, str], size: tuple[int, int, int]) -> None:
    """No false alarm for any config that takes a problem, in any round; slices of larger matrices among them."""
    op, operand, out = types
    if operand == "fp8":
        operand = "fp8e4m3fnuz" if arch() == "gfx942" else "fp8e4m3fn"
    problem = GemmProblem(*size, op, operand, operand, out, bias=size[0] % 16 == 0)
    configs = [config for config in CONFIGS if takes(problem, config, arch())]
    module, operands = on_gpu(tmp_path, problem, *configs)
    checking = Checking(problem, get_op(op), arch(), module.reference, operands)
    for name in module.CONFIGS:
        verdict = checking.check(module_subject(module, name, module.units_of(operands)))
        assert verdict.message == "", name
        assert verdict.rounds == ("exact", "layout", "random")


FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
SCALES: tuple[tuple[tuple[str, str], ...], ...] = ((), (("scales", "per_token"),), (("scales", "blocks"),))
GATE_UP = ("experts", 9), ("stage", "gate_up"), ("top_k", 3)
# Formats whose operands lie otherwise, in sizes that overhang and that do not; and operands of two types.
LAID_OUT = [
    *(GemmProblem(*size, "batched_a16w16", own=(("batch_size", 7),)) for size in ((1, 1000, 1208), (100, 520, 1000))),
    GemmProblem(128, 256, 512, "batched_a16w16", row_major_b=True, activation="silu", own=(("batch_size", 33),)),
    GemmProblem(100, 520, 1008, "batched_a8w8", "int8", "int8", own=(("batch_size", 3),)),
    *(GemmProblem(m, 1008, 1184, "a8w8_bpreshuffle", *FP8, own=(("scales", "per_token"),)) for m in (1, 12, 100)),
    GemmProblem(100, 1008, 1184, "a8w8_bpreshuffle", "int8", "int8", bias=True, own=(("layout", "n8k16"),)),
    GemmProblem(100, 1024, 1152, "a8w8_blockscale_bpreshuffle", *FP8),
    *(GemmProblem(m, 1000, 1208, dtype_a="fp16", dtype_b="bf16", dtype_c="fp16") for m in (1, 12, 100)),
    GemmProblem(100, 1000, 1208, dtype_a="bf16", dtype_b="fp16", row_major_b=True, bias=True),
    # Rows of A, of B or of both off 16 bytes, which are copied before they are multiplied.
    *(GemmProblem(805, n, 4177, bias=True, activation="gelu") for n in (520, 1009)),
    GemmProblem(300, 1008, 1009, dtype_a="fp16", dtype_b="fp16", dtype_c="fp32", row_major_a=False),
    GemmProblem(301, 1008, 1009, row_major_a=False, row_major_b=True),
    GemmProblem(300, 1009, 1008, row_major_b=True),
    *(GemmProblem(m, 520, 1008, "grouped_gemm", own=(("groups", 7),)) for m in (1, 300, 2000)),
    GemmProblem(500, 520, 1008, "grouped_gemm", own=(("capacity", 300), ("groups", 7), ("routing", "skewed"))),
    *(GemmProblem(300, 520, 1008, "grouped_gemm", *FP8, own=(("groups", 7), *more)) for more in SCALES),
    *(GemmProblem(m, 520, 1008, "fused_moe", own=(("experts", 9), ("top_k", 3))) for m in (1, 300)),
    *(GemmProblem(m, 520, 1008, "fused_moe", activation="silu", own=GATE_UP) for m in (1, 300)),
    *(GemmProblem(300, 520, 1008, "fused_moe", *FP8, own=(("experts", 9), *more, ("top_k", 3))) for more in SCALES),
    *(
        GemmProblem(300, 520, 1008, "fused_moe", *FP8, activation="silu", own=tuple(sorted((*GATE_UP, *more))))
        for more in SCALES
    ),
]


@pytest.mark.parametrize("problem", LAID_OUT, ids=lambda problem: problem.name)
def test_what_lies_otherwise_passes_the_check(tmp_path: Path, problem: GemmProblem) -> None:
    """In every config that takes them; of a batch through TMA, as far as it has no gaps."""
    if arch() == "gfx942" and problem.dtype_a.startswith("fp8"):
        problem = dataclasses.replace(problem, dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz")
    configs = [config for config in CONFIGS if takes(problem, config, arch())]
    module, operands = on_gpu(tmp_path, problem, *configs)
    checking = Checking(problem, get_op(problem.op), arch(), module.reference, operands)
    for name in module.CONFIGS:
        verdict = checking.check(module_subject(module, name, module.units_of(operands)))
        assert verdict.message == "", name


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("size", [(1, 1000, 1208), (100, 2112, 1008)], ids=str)
def test_epilogues(tmp_path: Path, size: tuple[int, int, int], activation: str, types: tuple[str, str, str]) -> None:
    """Every config and the vendor library apply bias and activation once; int8's library call is the product only."""
    op, operand, out = types
    if operand == "fp8":
        operand = "fp8e4m3fnuz" if arch() == "gfx942" else "fp8e4m3fn"
    problem = GemmProblem(*size, op, operand, operand, out, bias=True, activation=activation)
    configs = [config for config in CONFIGS if takes(problem, config, arch())]
    module, operands = on_gpu(tmp_path, problem, *configs)
    module.check(list(module.CONFIGS), operands)
    if operand != "int8" and size[0] > 1:
        operands["c"].fill_(float("nan"))
        limit = 2 * get_op(op).worst_row_limit(problem)
        assert worst_row_error(module.vendor(operands), module.reference(operands)) <= limit


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_slices_of_larger_matrices(tmp_path: Path, config: Config) -> None:
    """Leading dimensions are those of the operands at run time; odd ones where the copy engine is not used."""
    problem = fitted(GemmProblem(96, 2112, 1008, bias=True), config)
    if not takes(problem, config, arch()):
        pytest.skip(f"not on {arch()}")
    module, operands = on_gpu(tmp_path, problem, config)
    row_major = {"a": problem.row_major_a, "b": problem.row_major_b, "c": True}
    for extra in (16, 64) if traits_of(config).uses_tma else (1, 3, 64):
        sliced = {**operands, **{name: _slice(operands[name], row_major[name], extra) for name in "abc"}}
        module.check([config.name], sliced)


def _slice(x: Any, row_major: bool, extra: int) -> Any:
    """`x` as a part of a matrix of NaNs whose leading dimension is `extra` larger."""
    import torch

    if not row_major:
        return _slice(x.T, True, extra).T
    whole = torch.full((x.shape[0], x.shape[1] + extra), float("nan"), dtype=x.dtype, device=x.device)
    return whole[:, : x.shape[1]].copy_(x)


def _error_of_positive_sums(folder: Path, problem: GemmProblem, config: Config) -> float:
    """Largest relative error of C against float64, for A and B from 0 to 1: a sum is that of its absolute products."""
    import torch

    module, operands = on_gpu(folder, problem, config)
    generator = torch.Generator(device="cuda").manual_seed(0)
    for name in ("a", "b"):
        operands[name].copy_(torch.rand(operands[name].shape, generator=generator, device="cuda"))
    exact = operands["a"].double() @ operands["b"].double()
    actual = getattr(module, f"matmul_{config.name}")(operands).double()
    error: float = ((actual - exact).abs() / exact).max().item()
    return error


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_long_sums_stay_in_float32(tmp_path: Path, config: Config) -> None:
    """K = 262,144: the error against float64 is that of float32 sums, and a split makes it no larger.

    The bound is (K - 1) u / (1 - (K - 1) u) for positive terms in any order (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd edition, section 3.1), with u = 2^-23, since tensor cores truncate (Fasi, Higham,
    Mikaitis and Pranesh, Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021).
    """
    problem = fitted(LONG_SUMS, config)
    if not takes(problem, config, arch()):
        pytest.skip(f"not on {arch()}")
    roundings = (LARGE_K - 1) * 2.0**-23
    error = _error_of_positive_sums(tmp_path, problem, config)
    assert error <= roundings / (1 - roundings)
    if config.SPLIT_K > 1:
        (tmp_path / "unsplit").mkdir()
        unsplit = _error_of_positive_sums(tmp_path / "unsplit", problem, dataclasses.replace(config, SPLIT_K=1))
        # Both are of the size of a rounding or two where rounding is to nearest.
        assert error <= unsplit + 2.0**-21


@pytest.mark.parametrize("config", SHARING, ids=lambda config: config.name)
def test_partial_sums_are_not_in_16_bits(tmp_path: Path, config: Config) -> None:
    """K = 256 in shares: C is within 2^-15 of float64, which it is not if partial sums were rounded to 16 bits.

    The bound is that of the long sums above: (K - 1) u / (1 - (K - 1) u) with u = 2^-23 is 2^-15.006. Rounding to
    float16, which has 11 bits, moves a partial sum by up to 2^-11 of itself, and to bfloat16, which has 8, by up to
    2^-8; the terms are positive, so no partial sum is larger than the whole. By how much is spread evenly, so that some
    of the 8,192 elements come near to it: in NumPy, with these operands in one to five shares, the worst is off by
    2^-11.0 to 2^-11.5 with float16 and by 2^-8.0 to 2^-8.4 with bfloat16, which is eleven times the bound or more.
    """
    problem = fitted(SHORT_SUMS, config)
    if not takes(problem, config, arch()):
        pytest.skip(f"not on {arch()}")
    roundings = (SMALL_K - 1) * 2.0**-23
    assert _error_of_positive_sums(tmp_path, problem, config) <= roundings / (1 - roundings)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_runs_repeat_to_the_bit(tmp_path: Path, config: Config) -> None:
    """A hundred calls on the same operands give the same bits, for every family that is not marked otherwise."""
    import torch

    if not traits_of(config).deterministic:
        pytest.skip(f"{config.family} adds in the order in which programs arrive")
    problem = fitted(GemmProblem(100, 2112, 8192, dtype_c="fp32", bias=True, activation="gelu"), config)
    if not takes(problem, config, arch()):
        pytest.skip(f"not on {arch()}")
    module, operands = on_gpu(tmp_path, problem, config)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    call = getattr(module, f"matmul_{config.name}")
    # One workspace, as the measured process has it: what a call leaves there is what the next one finds.
    operands = module.with_workspace(module.CONFIGS[config.name], operands, units)
    first = call(operands, units).clone()
    assert torch.isfinite(first).all()
    for _ in range(RUNS - 1):
        operands["c"].fill_(float("nan"))
        assert torch.equal(call(operands, units).view(torch.int16), first.view(torch.int16))
    assert "counters" not in operands or not operands["counters"].any()
