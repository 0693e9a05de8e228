"""Tests of profiling/loaded_gemm.py that need no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import faulty_kernels
import pytest
from cute_stand_in import cubin
from hypothesis import given
from hypothesis import strategies as st
from recording_gpu import FakeGpu
from small_gemms import taking

from genkern.compile.cache import BinaryCache
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.contract.product import product_of
from genkern.kernels.kernel import KernelSpec
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import launch_plan
from genkern.ops.op import get_op
from genkern.profiling.loaded_gemm import Launchable, LoadedGemm, SharedWorkspace, rotating_copies
from genkern.runtime.launch.cached_call import CachedBinaries
from genkern.timing.session import Budget, Session


@given(st.integers(1, 2**40), st.floats(0.001, 65_536))
def test_copies_exceed_the_size_asked_for_and_no_more(bytes_per_copy: int, rotating_mb: float) -> None:
    """Together they reach `rotating_mb` MiB with the fewest copies, up to 512 of them."""
    copies = rotating_copies(bytes_per_copy, rotating_mb)
    wanted = int(rotating_mb * 2**20)
    assert 1 <= copies <= 512
    assert copies * bytes_per_copy >= wanted or copies == 512
    assert copies == 1 or (copies - 1) * bytes_per_copy < wanted


@given(st.integers(1, 2**40))
def test_zero_turns_rotation_off(bytes_per_copy: int) -> None:
    """One copy, which stays warm."""
    assert rotating_copies(bytes_per_copy, 0) == 1


def plan_of(problem: GemmProblem, config: Config) -> LaunchPlan:
    return launch_plan(product_of(problem, get_op(problem.op), "sm_90"), config, gpu_for_arch("sm_90"))


def test_configs_share_a_workspace_that_is_large_enough() -> None:
    """Whatever was bound before, a config finds what it needs, and counters that were never anything but zero."""
    pytest.importorskip("torch")
    problem = GemmProblem(48, 96, 512)
    workspace = SharedWorkspace("cpu")
    for config in [*taking(problem), *reversed(taking(problem))]:
        plan = plan_of(problem, config)
        tensors = workspace.for_plan(plan, {"units": 5})
        elements, counters = plan.workspace_elements({"units": 5})
        assert tensors["workspace"].numel() >= elements
        assert tensors["counters"].numel() >= counters
        assert not tensors["counters"].any()


def faulty(folder: Path, gpu: FakeGpu) -> Callable[[str], Launchable]:
    """Configs of faulty_kernels.py, each by its family, with a binary that has the kernels' parameters."""
    spec = KernelSpec("good", "0", faulty_kernels.SIGNATURE, (("BLOCK", faulty_kernels.BLOCK),), (), ())
    said = json.dumps({"num_warps": 4, "shared": 0}).encode()
    files = {"kernel.cubin": cubin("good", [8, 8, 8, 4, 8, 8]), "kernel.json": said}
    binary = BinaryCache(folder).put("00" * 32, spec, "good", Resources(), files)
    return lambda family: Launchable(family, (binary.path,), faulty_kernels.plan(family))


def test_kernels_that_end_the_process_do_so_when_they_are_launched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the GPU tests of faults rely on: the others are launched, with what their binary declares."""
    pytest.importorskip("torch")

    class Ended(BaseException):
        pass

    def end(*_: object) -> None:
        raise Ended

    monkeypatch.setattr(os, "kill", end)
    monkeypatch.setattr(os, "_exit", end)
    gpu = FakeGpu()
    of = faulty(tmp_path, gpu)
    problem = GemmProblem(1, faulty_kernels.SIZE, 1, dtype_a="fp32", dtype_b="fp32", dtype_c="fp32")
    session = Session(faulty_kernels.__file__, problem, "sm_90", 0, ".", Budget(rotating_mb=0))
    gemm = LoadedGemm(session, "cpu", CachedBinaries(gpu, "cuda", 32))
    gemm.bind(of("good"))(0)
    (launched,) = gpu.driver.launched
    assert (launched.grid, launched.threads) == ((1024, 1, 1), 128)
    a, b, c, n, *hidden = (int.from_bytes(each, "little") for each in launched.parameters)
    assert [a, b, c] == [gemm.operands[name].data_ptr() for name in "abc"]
    assert (n, hidden) == (faulty_kernels.SIZE, [0, 0])
    for family in ("killed", "exits"):
        call = gemm.bind(of(family))
        with pytest.raises(Ended):
            call(0)
        gemm.bind(of(f"late_{family}"))(0)
    assert len(gpu.driver.launched) == 3


def test_bits_that_do_not_fit_are_not_compared() -> None:
    """For want of memory nothing is said of a config, and the others are compared; a fault is nobody's want of it."""
    torch = pytest.importorskip("torch")
    gemm = LoadedGemm.__new__(LoadedGemm)
    gemm.operands, gemm._counters = {"c": torch.zeros(2, 2)}, {}

    def fails(what: str) -> Callable[[], object]:
        def timed() -> None:
            raise RuntimeError(what)

        return timed

    def fill(copy: int) -> None:
        gemm.operands["c"].fill_(copy)

    calls = {"unfit": (fill, fails("CUDA out of memory")), "wrong": (fill, lambda: gemm.operands["c"].fill_(3))}
    assert list(gemm.faults_of_timed(calls, 2, lambda told: None)) == ["wrong"]
    with pytest.raises(RuntimeError, match="illegal"):
        gemm.faults_of_timed({"broken": (fill, fails("an illegal memory access"))}, 2, lambda told: None)
