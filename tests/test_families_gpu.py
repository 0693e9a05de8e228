"""Numerics of every kernel family on a GPU, through the generated module's own check."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.compiler import load_module
from genkern.config import Config
from genkern.determinism import is_deterministic
from genkern.generate import generate
from genkern.gpus import detect_arch, gpu_for_arch
from genkern.problem import GemmProblem
from genkern.rules import rule_for

pytestmark = pytest.mark.gpu

CONFIGS = [
    Config("tiled", 64, 64, 64, 4, 1, 4, 3),
    Config("tiled", 16, 64, 64, 1, 5, 4, 3),
    Config("tiled", 64, 64, 64, 4, 1, 4, 1, xcd_remap=1, cache_modifier=".cg"),
    Config("tiled", 16, 64, 64, 1, 5, 4, 1, xcd_remap=1),
    Config("tiled_tma", 64, 64, 64, 8, 1, 4, 4),
    Config("tiled_tma", 16, 64, 128, 1, 4, 4, 4),
    Config("tiled_tma", 64, 32, 64, 1, 3, 4, 4),
    Config("persistent_tma", 128, 128, 64, 8, 1, 8, 3),
    Config("warp_specialized", 64, 64, 64, 4, 1, 4, 8),
    Config("warp_specialized", 128, 160, 64, 4, 1, 8, 4),
    Config("warp_specialized", 64, 112, 64, 4, 1, 4, 6),
    Config("gemv", 1, 4, 512, 1, 1, 4, 1),
    Config("tiled_semaphore", 64, 64, 64, 4, 3, 4, 3),
    Config("tiled_semaphore", 128, 128, 64, 8, 1, 8, 3),
    Config("tiled_atomic", 64, 64, 64, 4, 3, 4, 3),
    Config("stream_k", 128, 128, 64, 8, 1, 8, 3),
    Config("stream_k", 64, 64, 64, 4, 1, 4, 3),
    Config("tiled_swapped", 16, 128, 64, 1, 4, 4, 3),
    Config("tiled_swapped", 8, 64, 128, 1, 1, 4, 3),
    Config("tiled_tma_swapped", 16, 128, 64, 1, 4, 4, 3),
    Config("tiled_tma_swapped", 8, 64, 128, 1, 1, 4, 3),
    Config("skinny", 1, 4, 1024, 1, 2, 4, 1),
    Config("skinny", 16, 2, 1024, 1, 1, 4, 1),
]
SIZES = [(1, 4096, 4096), (1, 1000, 1208), (16, 1280, 8192), (100, 2112, 1000), (256, 6144, 4096), (1000, 1111, 520)]
FAMILY_RULES = ("tma_aligned", "gemv_one_row", "wgmma_operands", "tma_needs_sm90")
# Enough calls for programs to end in many orders.
CALLS = 100


TYPES = [("a16w16", "bf16", "bf16"), ("a16w16", "fp16", "fp32"), ("a8w8", "int8", "bf16"), ("a8w8", "fp8", "bf16")]
# Weights as they usually lie for every size, the other layouts for one.
LAYOUTS = [(size, (True, False)) for size in SIZES]
LAYOUTS += [((96, 2112, 1008), layout) for layout in ((True, True), (False, False), (False, True))]


@pytest.mark.parametrize(("size", "layout"), LAYOUTS, ids=str)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_families_agree_with_the_reference(
    tmp_path: Path, types: tuple[str, str, str], layout: tuple[bool, bool], size: tuple[int, int, int]
) -> None:
    """Every config that the rules allow for a problem computes it, with and without a bias, and writes all of C."""
    import torch

    arch = detect_arch() or "sm_90"
    gpu = gpu_for_arch(arch)
    op, operand, out = types
    if operand == "fp8":
        operand = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    problem = GemmProblem(*size, op, operand, operand, out, *layout, bias=size[0] % 16 == 0)
    rules = [rule_for(name, [1]) for name in FAMILY_RULES]
    configs = [config for config in CONFIGS if not any(rule(problem, config, gpu) for rule in rules)]
    module = generate(problem, configs, arch)
    path = tmp_path / module.file_name
    path.write_text(module.text)
    loaded = load_module(str(path))
    loaded.check(list(loaded.CONFIGS), loaded.make_operands("cuda"))
    torch.cuda.synchronize()


@pytest.mark.parametrize("types", TYPES, ids=str)
def test_runs_agree_to_the_bit_where_the_family_says_so(tmp_path: Path, types: tuple[str, str, str]) -> None:
    """Calls in one workspace give one result, but for the families that are not deterministic; counters end at zero."""
    import torch

    arch = detect_arch() or "sm_90"
    gpu = gpu_for_arch(arch)
    op, operand, out = types
    if operand == "fp8":
        operand = "fp8e4m3fnuz" if arch == "gfx942" else "fp8e4m3fn"
    problem = GemmProblem(64, 2112, 7168, op, operand, operand, out)
    rules = [rule_for(name, [1]) for name in FAMILY_RULES]
    configs = [config for config in CONFIGS if not any(rule(problem, config, gpu) for rule in rules)]
    module = generate(problem, configs, arch)
    path = tmp_path / module.file_name
    path.write_text(module.text)
    loaded = load_module(str(path))
    units = torch.cuda.get_device_properties(0).multi_processor_count
    operands = loaded.make_operands("cuda")
    for config in configs:
        row = loaded.CONFIGS[config.name]
        given = loaded.with_workspace(row, operands, units)
        first = loaded.matmul(row, given, units).clone()
        equal = all(torch.equal(first, loaded.matmul(row, given, units)) for _ in range(CALLS))
        assert equal or not is_deterministic(problem, config), config.name
        assert "counters" not in given or not given["counters"].any(), config.name
