"""A GPU whose matrix units keep few bits: what the library and kernels make of the check's inputs for full sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreted import takes
from lt_problems import expected_of, leading_of, operands_of, pointers_of
from small_gemms import make_module

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_arch
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_fast, as_full, keeps_few_bits
from genkern.ops.op import get_op
from genkern.profiling.checking.interpret import module_subject
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.checking.wide_sums import of_a, of_b
from genkern.runtime.backends import cublaslt
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES

pytestmark = pytest.mark.gpu
FULL = as_full(GemmProblem(64, 256, 4096, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16"))
PER_TOKEN = replace(FULL, M=1024, K=2048, own=(("accumulate", "full"), ("scales", "per_token")))
CONFIGS = [
    Config("tiled", 64, 64, 128, 1, 2, 4, 4),
    Config("tiled", 16, 64, 128, 1, 1, 4, 4, swapped=1, reduce="semaphore"),
    Config("tiled_tma", 64, 128, 128, 1, 1, 4, 4),
    Config("persistent_tma", 64, 128, 128, 1, 1, 4, 4),
    Config("warp_specialized", 64, 64, 128, 1, 1, 4, 4),
    Config("warp_specialized", 128, 176, 128, 1, 2, 8, 4),
    Config("warp_specialized", 64, 128, 128, 1, 1, 8, 6, swapped=1),
    Config("warp_specialized", 32, 64, 128, 1, 1, 4, 6, swapped=1, cluster_k=4),
]


@pytest.fixture(autouse=True)
def few_bits() -> None:
    if not torch.cuda.is_available() or not keeps_few_bits(detect_arch()):
        pytest.skip("needs a GPU that keeps few bits of sums of fp8")


def operands(problem: GemmProblem) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """On the device, and C as it should be."""
    made = operands_of(problem, device="cuda")
    a, b, *_ = get_op(problem.op).operands(problem)
    generator = torch.Generator(device="cuda").manual_seed(1)
    for make, operand in ((of_a, a), (of_b, b)):
        made[operand.name].copy_(make("cuda", operand, generator).to(made[operand.name].dtype))
    return made, expected_of(problem, made).to(made["c"].dtype)


@pytest.mark.parametrize("problem", [FULL, PER_TOKEN], ids=["per_tensor", "per_token"])
def test_the_library_makes_the_sums_that_it_is_asked_for(problem: GemmProblem) -> None:
    """PyTorch's call, and every algorithm: in full sums none is off by a bit; of fast ones some are."""
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    right: dict[bool, list[bool]] = {}
    for asked in (problem, as_fast(problem)):
        made, expected = operands(asked)
        matmul, pointers = cublaslt.BACKEND.prepare(asked, 0, leading_of(made)), pointers_of(made)
        stream = torch.cuda.current_stream().cuda_stream
        found = []
        for algorithm in cublaslt.BACKEND.candidates(matmul, pointers, 32):
            made["c"].fill_(1000)
            matmul.bind(algorithm, pointers, workspace.data_ptr(), len(workspace))(stream)
            torch.cuda.synchronize()
            found.append(torch.equal(made["c"], expected))
        scales: dict[str, Any] = {"scale_a": made["scale_a"], "scale_b": made["scale_b"]}
        is_fast = asked != problem
        c = torch._scaled_mm(made["a"], made["b"], **scales, out_dtype=torch.bfloat16, use_fast_accum=is_fast)
        right[is_fast] = [*found, torch.equal(c, expected)]
    assert all(right[False]), right
    assert not all(right[True])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_fast_kernels_are_wrong_for_full_problems(config: Config, tmp_path: Path) -> None:
    """And full ones right for both."""
    problem = replace(FULL, M=200)
    assert takes(problem, config)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    passed = {}
    for made_for in (problem, as_fast(problem)):
        folder = tmp_path / ("fast" if made_for != problem else "full")
        folder.mkdir()
        _, module = make_module(folder, made_for, [config], arch=detect_arch())
        like = module.make_operands("cuda")
        for asked in (problem, as_fast(problem)):
            checking = Checking(asked, get_op("a8w8"), detect_arch(), module.reference, like)
            verdict = checking.check(module_subject(module, config.name, units))
            passed[made_for != problem, asked != problem] = verdict.passed
    assert passed == {(False, False): True, (False, True): True, (True, False): False, (True, True): True}
