"""fp8 with full sums in CuTe DSL computes, to the bit, on the machine that runs PTX, and promotes each K-block."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from cute_binary import compiled
from cute_stand_in import needs_dsl
from ptx_gemm import computed

from genkern.compile.binary.code_object import read_resources
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full

pytestmark = needs_dsl
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        # Two sets of products and two programs that load for one another; one set, of two wgmmas a group.
        (
            "cute_wgmma_BM128_BN32_BK128_GM2_SK1_nW8_nS3_cl2x1",
            GemmProblem(300, 72, 592, "a8w8", *FP8, bias=True),
        ),
        (
            "cute_wgmma_BM256_BN128_BK128_GM2_SK1_nW8_nS2",
            GemmProblem(300, 136, 640, "a8w8", *FP8, own=(("scales", "per_token"),)),
        ),
    ],
)
def test_full_sums(name: str, problem: GemmProblem, tmp_path: Path) -> None:
    config = Config.parse(name)
    made = compiled(as_full(problem), config, "sm_90", tmp_path)
    got, wanted = computed(as_full(problem), config, made, seed=1, units=2)
    np.testing.assert_array_equal(got, wanted)
    assert read_resources(made.image, "cuda", 0).spills == 0
    # Of a K-block's products none but the first four of a row replace what registers held; then they are added up.
    elements = config.BLOCK_SIZE_M * config.BLOCK_SIZE_N // (32 * config.num_warps)
    assert len(re.findall(r"add(?:\.rn)?\.f32", made.ptx)) >= 2 * elements
