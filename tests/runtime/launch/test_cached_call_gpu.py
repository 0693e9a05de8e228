"""Kernels in CuTe DSL on a GPU, as the measured process launches them: exact on whole numbers, whatever overhangs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cute_stand_in import needs_dsl

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target
from genkern.kernels.specs import kernel_specs, launch_plan
from genkern.ops.op import get_op
from genkern.runtime.launch.cached_call import CachedBinaries
from genkern.runtime.launch.parameters import Layout
from genkern.runtime.launch.torch_gpu import TorchGpu

pytestmark = [pytest.mark.gpu, needs_dsl]
H200 = gpu_for_arch("sm_90")
CONFIGS = [
    "cute_wgmma_BM128_BN168_BK64_GM3_SK1_nW8_nS5_ping_pong",
    "cute_wgmma_BM64_BN96_BK64_GM3_SK1_nW8_nS4_ping_pong_cl2x1",
    "cute_wgmma_BM128_BN128_BK64_GM3_SK1_nW8_nS4_ping_pong_cl1x2_direct",
    "cute_wgmma_BM64_BN72_BK64_GM3_SK1_nW4_nS4",
    "cute_wgmma_BM256_BN152_BK64_GM3_SK1_nW8_nS4_cl1x2",
    "cute_wgmma_BM256_BN128_BK64_GM3_SK1_nW8_nS4_cl2x2",
]


@pytest.mark.parametrize("name", CONFIGS)
def test_exact_products(tmp_path: Path, name: str) -> None:
    """Of integers, whose sums are exact in any order: equal to the bit, and every element is written."""
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("these kernels are for sm_90")
    config, problem = Config.parse(name), GemmProblem(389, 584, 712)
    op = get_op(problem.op)
    module = generate(problem, [config], "sm_90", H200)
    (spec,) = kernel_specs(problem, config, op, module.source_sha256, "sm_90")
    farm = Farm(BinaryCache(tmp_path), Target("cuda", 90, 32), "3.7.1", jobs=1, timeout_s=120.0)
    (binary,) = farm.compile("", [spec])
    farm.close()
    assert isinstance(binary, Binary), binary
    plan, dtypes = launch_plan(product_of(problem, op, "sm_90"), config, H200), dict.fromkeys("abc", "bf16")
    gpu = TorchGpu(0)
    call = CachedBinaries(gpu, "cuda", 32).call([binary.path], plan, dtypes, {"units": gpu.identity.compute_units})
    a = torch.randint(-3, 4, (problem.M, problem.K), device="cuda").bfloat16()
    b = torch.randint(-3, 4, (problem.N, problem.K), device="cuda").bfloat16().T
    c = torch.full((problem.M, problem.N), float("nan"), device="cuda", dtype=torch.bfloat16)
    empty = torch.zeros(4, device="cuda", dtype=torch.int32)
    tensors = {"a": a, "b": b, "c": c, "workspace": empty, "counters": empty}
    layouts = {name: Layout.of(tensors[name].shape, tensors[name].stride(), name != "b", 2) for name in "abc"}
    assert call.prepared(layouts).launch(gpu.stream(), call.addresses(tensors))
    torch.testing.assert_close(c, (a.float() @ b.float()).bfloat16(), rtol=0, atol=0)
