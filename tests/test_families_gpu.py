"""Numerics of every kernel family on a GPU, through the generated module's own check."""

from __future__ import annotations

from pathlib import Path

import pytest

from genkern.compiler import load_module
from genkern.config import Config
from genkern.generate import generate
from genkern.gpus import detect_arch, gpu_for_arch
from genkern.problem import GemmProblem
from genkern.rules import rule_for

pytestmark = pytest.mark.gpu

CONFIGS = [
    Config("tiled", 64, 64, 64, 4, 1, 4, 3),
    Config("tiled", 16, 64, 64, 1, 5, 4, 3),
    Config("tiled_tma", 64, 64, 64, 8, 1, 4, 4),
    Config("tiled_tma", 16, 64, 128, 1, 4, 4, 4),
    Config("tiled_tma", 64, 32, 64, 1, 3, 4, 4),
    Config("persistent_tma", 128, 128, 64, 8, 1, 8, 3),
    Config("warp_specialized", 64, 64, 64, 4, 1, 4, 8),
    Config("warp_specialized", 128, 160, 64, 4, 1, 8, 4),
    Config("warp_specialized", 64, 112, 64, 4, 1, 4, 6),
    Config("warp_specialized_tiled", 64, 80, 64, 1, 1, 4, 8),
    Config("warp_specialized_tiled", 64, 112, 64, 8, 4, 4, 6),
    Config("warp_specialized_tiled", 128, 160, 64, 1, 2, 8, 5),
    Config("warp_specialized_tiled", 256, 160, 64, 1, 1, 8, 4),
    Config("gemv", 1, 4, 512, 1, 1, 4, 1),
]
SIZES = [(1, 4096, 4096), (1, 1000, 1208), (16, 1280, 8192), (100, 2112, 1000), (256, 6144, 4096), (1000, 1111, 520)]
FAMILY_RULES = ("tma_aligned", "gemv_one_row", "wgmma_operands", "tma_needs_sm90")


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
