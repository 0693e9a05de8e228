"""Kernels in Gluon for rows in groups on a GPU: the check, rows that do not count, the same bits in every run."""

from __future__ import annotations

from pathlib import Path

import pytest
from forms import made
from small_gemms import make_module

from genkern.gemm.gpus import detect_arch, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.ops.op import get_op
from genkern.profiling.checking.interpret import module_subject
from genkern.profiling.checking.verdict import Checking

pytestmark = pytest.mark.gpu

UPRIGHT, SWAPPED = "warp_specialized", "warp_specialized_swapped"
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
# Blocks along K of one and of two buffers in 16 and in 8 bits; one and two warpgroups, one and two products of each.
CONFIGS = [
    made(family, *tile, block_k, group, 1, warps, stages)
    for block_k in (64, 128)
    for family, tile, group, warps, stages in (
        (UPRIGHT, (64, 112), 1, 4, 4),
        (UPRIGHT, (128, 128), 4, 8, 4),
        (UPRIGHT, (128, 96), 2, 4, 3),
        (UPRIGHT, (256, 128), 3, 8, 3),
        (SWAPPED, (8, 64), 1, 4, 6),
        (SWAPPED, (40, 128), 2, 8, 4),
        (SWAPPED, (88, 128), 4, 4, 3),
        (SWAPPED, (136, 128), 1, 8, 3),
    )
]
SCALES: tuple[tuple[tuple[str, str], ...], ...] = ((), (("scales", "per_token"),), (("scales", "blocks"),))
SKEWED = ("routing", "skewed")
PROBLEMS = [
    *(GemmProblem(m, 520, 1008, "grouped_gemm", own=(("groups", 7),)) for m in (1, 3000)),
    GemmProblem(500, 4096, 1024, "grouped_gemm", own=(("groups", 200), SKEWED), activation="silu"),
    GemmProblem(500, 520, 1008, "grouped_gemm", own=(("capacity", 300), ("groups", 7), SKEWED)),
    *(GemmProblem(1000, 520, 1008, "grouped_gemm", *FP8, own=(("groups", 7), *more)) for more in SCALES),
    GemmProblem(500, 4096, 2048, "grouped_gemm", *FP8, own=(("capacity", 300), ("groups", 16), SKEWED, SCALES[2][0])),
    GemmProblem(500, 520, 1008, "grouped_gemm", "int8", "int8", "bf16", own=(("groups", 7), ("scales", "per_token"))),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_passes_the_check_and_repeats_itself(tmp_path: Path, problem: GemmProblem) -> None:
    """In every config that takes it: exact inputs, matrices that lie apart, random ones; 50 runs agree to the bit."""
    import torch

    arch = detect_arch() or "sm_90"
    configs = [config for config in CONFIGS if not legal(problem, config, gpu_for_arch(arch))]
    if not configs:
        pytest.skip(f"not on {arch}")
    _, module = make_module(tmp_path, problem, configs, arch)
    operands = module.make_operands("cuda")
    checking = Checking(problem, get_op(problem.op), arch, module.reference, operands)
    for name, config in module.CONFIGS.items():
        verdict = checking.check(module_subject(module, name, module.units_of(operands)))
        assert verdict.message == "", name
        operands["c"].fill_(float("nan"))
        first = module.matmul(config, operands).clone()
        for _ in range(49):
            operands["c"].fill_(float("nan"))
            assert torch.equal(module.matmul(config, operands).view(torch.int16), first.view(torch.int16)), name
