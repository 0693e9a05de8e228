"""Tests of genkern.profiling.cuda.native_binary: kernels that no Triton made, launched in the measured process."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch
from cute_stand_in import put
from recording_gpu import FakeDriver

from genkern.errors import LaunchError
from genkern.farm.cache import BinaryCache
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.families.product import product_of
from genkern.kernels.specs import kernel_specs, launch_plan, main_variant
from genkern.ops.op import get_op
from genkern.profiling.cuda.native_binary import NativeBinary

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(300, 512, 256)
CONFIG = Config("cute_wgmma", 128, 128, 64, 4, 1, 8, 5, schedule="ping_pong", cluster="1x2")


def loaded(folder: Path, driver: FakeDriver) -> NativeBinary:
    """The config's binary, in a cache in this folder."""
    op = get_op(PROBLEM.op)
    (launch,) = launch_plan(product_of(PROBLEM, op, "sm_90"), CONFIG, H200).launches
    (spec,) = kernel_specs(PROBLEM, CONFIG, op, {main_variant(PROBLEM, CONFIG).name: "0"}, "sm_90")
    binary = put(BinaryCache(folder), "00" * 32, spec)
    return NativeBinary(binary.path, launch, {operand.name: operand for operand in op.operands(PROBLEM)}, driver)


def operands(shift: int = 0) -> dict[str, torch.Tensor]:
    """A, B as the transpose of [N, K], C; `shift` elements behind where they should begin."""
    flat = torch.empty(PROBLEM.M * PROBLEM.K + 64, dtype=torch.bfloat16)
    aligned = flat[-flat.data_ptr() % 16 // 2 + shift :][: PROBLEM.M * PROBLEM.K].view(PROBLEM.M, PROBLEM.K)
    b = torch.empty(PROBLEM.N, PROBLEM.K, dtype=torch.bfloat16).T
    return {"a": aligned, "b": b, "c": torch.empty(PROBLEM.M, PROBLEM.N, dtype=torch.bfloat16)}


def test_it_is_launched_by_its_plan(tmp_path: Path) -> None:
    """Grid, threads, cluster and shared memory, descriptors of 128 bytes, then M, N, K and GROUP_SIZE_M."""
    driver = FakeDriver()
    loaded(tmp_path, driver).bound(operands(), {"units": 132}, lambda: 7)()
    (launched,) = driver.launched
    assert launched.symbol == "matmul_cute_ping_pong_1x2_p64_BM128_BN128_BK64_nW8_nS5_0"
    # Three tiles along M and two pairs of them along N.
    assert (launched.grid, launched.threads, launched.cluster, launched.stream) == ((12, 1, 1), 384, 2, 7)
    assert [len(data) for data in launched.parameters] == [128, 128, 128, 4, 4, 4, 4]
    assert [struct.unpack("<i", data)[0] for data in launched.parameters[3:]] == [300, 512, 256, 4]
    assert [(each.sizes, each.box, each.swizzle) for each in driver.encoded] == [
        ((256, 300), (64, 64), 3),
        ((256, 512), (64, 128), 3),
        ((512, 300), (64, 16), 3),
    ]


def test_a_binary_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Is one that the device refuses."""
    driver = FakeDriver(refuses=("matmul_cute_ping_pong_1x2_p64_BM128_BN128_BK64_nW8_nS5_0",))
    with pytest.raises(LaunchError, match="refused"):
        loaded(tmp_path, driver)


def test_operands_off_16_bytes(tmp_path: Path) -> None:
    """Are refused rather than left out of what is timed."""
    launch = loaded(tmp_path, FakeDriver()).bound(operands(shift=1), {"units": 132}, lambda: 0)
    with pytest.raises(LaunchError, match="at multiples of 16 bytes only"):
        launch()
