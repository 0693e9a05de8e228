"""Tests of genkern.runtime.launch.cached_call: binaries in the cache, launched by their plans in any language."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cute_stand_in import put
from recording_gpu import FakeGpu

from genkern.compile.cache import BinaryCache
from genkern.errors import LaunchError, ResultsError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.product import product_of
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import kernel_specs, main_variant, plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.runtime.launch.cached_call import CachedBinaries, CachedCall
from genkern.runtime.launch.parameters import COUNTERS, WORKSPACE, Layout

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(300, 512, 256)
CONFIG = Config("cute_wgmma", 128, 128, 64, 4, 1, 8, 5, schedule="ping_pong", cluster="1x2")
SYMBOL = "matmul_cute_ping_pong_1x2_p64_BM128_BN128_BK64_nW8_nS5_0"


def plan() -> LaunchPlan:
    return LaunchPlan.from_json(plan_text(product_of(PROBLEM, get_op(PROBLEM.op), "sm_90"), CONFIG, H200))


def loaded(folder: Path, gpu: FakeGpu, of: LaunchPlan | None = None) -> CachedCall:
    """The config's call, by a binary in a cache in this folder."""
    op = get_op(PROBLEM.op)
    (spec,) = kernel_specs(PROBLEM, CONFIG, op, {main_variant(PROBLEM, CONFIG).name: "0"}, "sm_90")
    binary = put(BinaryCache(folder), "00" * 32, spec)
    dtypes = {operand.name: operand.dtype for operand in op.operands(PROBLEM)}
    known = {"units": 132, **run_time_values(CONFIG)}
    return CachedBinaries(gpu, "cuda", 32).call([binary.path], of or plan(), dtypes, known)


def operands(shift: int = 0) -> dict[str, torch.Tensor]:
    """A, B as the transpose of [N, K], C, and no workspace; `shift` elements behind where they should begin."""
    flat = torch.empty(PROBLEM.M * PROBLEM.K + 64, dtype=torch.bfloat16)
    aligned = flat[-flat.data_ptr() % 16 // 2 + shift :][: PROBLEM.M * PROBLEM.K].view(PROBLEM.M, PROBLEM.K)
    b = torch.empty(PROBLEM.N, PROBLEM.K, dtype=torch.bfloat16).T
    c = torch.empty(PROBLEM.M, PROBLEM.N, dtype=torch.bfloat16)
    return {"a": aligned, "b": b, "c": c, WORKSPACE: torch.empty(4), COUNTERS: torch.empty(4)}


def layouts(tensors: dict[str, torch.Tensor]) -> dict[str, Layout]:
    return {name: Layout.of(tensors[name].shape, tensors[name].stride(), name != "b", 2) for name in "abc"}


def test_a_cached_call_is_launched_by_its_plan(tmp_path: Path) -> None:
    """Grid, threads, cluster and shared memory, descriptors of 128 bytes, then M, N, K and GROUP_SIZE_M."""
    gpu, tensors = FakeGpu(), operands()
    call = loaded(tmp_path, gpu)
    assert call.operands == ("a", "b", "c")
    assert call.prepared(layouts(tensors)).launch(7, call.addresses(tensors))
    (launched,) = gpu.driver.launched
    assert launched.symbol == SYMBOL
    # Three tiles along M and two pairs of them along N.
    assert (launched.grid, launched.threads, launched.cluster, launched.stream) == ((12, 1, 1), 384, 2, 7)
    assert [len(data) for data in launched.parameters] == [128, 128, 128, 4, 4, 4, 4]
    assert [struct.unpack("<i", data)[0] for data in launched.parameters[3:]] == [300, 512, 256, 4]
    assert [(each.sizes, each.box, each.swizzle) for each in gpu.driver.encoded] == [
        ((256, 300), (64, 64), 3),
        ((256, 512), (64, 128), 3),
        ((512, 300), (64, 16), 3),
    ]


def test_a_binary_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Is one that the device refuses."""
    gpu = FakeGpu()
    gpu.driver.refuses = (SYMBOL,)
    with pytest.raises(LaunchError, match="refused"):
        loaded(tmp_path, gpu)


def test_a_binary_of_another_plan(tmp_path: Path) -> None:
    """Is not launched: neither one of another name, nor one that begins alike."""
    (launch,) = plan().launches
    for begins in ("matmul_tiled", "matmul_cute_ping_pong_1x2_p6"):
        other = replace(plan(), launches=(replace(launch, symbol=begins),))
        with pytest.raises(LaunchError, match=f"has {SYMBOL}, but the plan launches {begins}$"):
            loaded(tmp_path, FakeGpu(), other)


def test_a_binary_that_takes_other_parameters(tmp_path: Path) -> None:
    """A plan that gives one argument less is genkern's own fault, and is said before anything is launched."""
    (launch,) = plan().launches
    gpu = FakeGpu()
    shorter = replace(plan(), launches=(replace(launch, arguments=launch.arguments[:-1]),))
    with pytest.raises(ResultsError, match="takes parameters of"):
        loaded(tmp_path, gpu, shorter).prepared(layouts(operands()))


def test_a_binary_that_no_plan_can_launch(tmp_path: Path) -> None:
    """It wants memory of Triton's launcher, which nobody has who launches by a plan."""
    loaded(tmp_path, FakeGpu())
    (said,) = tmp_path.rglob("kernel.json")
    said.write_text(said.read_text().replace('"num_warps"', '"global_scratch_size": 8, "num_warps"'))
    gpu = FakeGpu()
    dtypes = dict.fromkeys("abc", "bf16")
    with pytest.raises(LaunchError, match="needs scratch memory"):
        CachedBinaries(gpu, "cuda", 32).call([str(said.parent)], plan(), dtypes, {"units": 132})


def test_operands_off_16_bytes(tmp_path: Path) -> None:
    """Nothing is launched, which whoever launches is told."""
    gpu, tensors = FakeGpu(), operands(shift=1)
    call = loaded(tmp_path, gpu)
    assert not call.prepared(layouts(tensors)).launch(0, call.addresses(tensors))
    assert not gpu.driver.launched
