"""What the measured process launches: by the dispatcher's own calls what Triton's launcher would, byte for byte."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from launch_ways import gpu as gpu
from long_tests import drawn
from recording_gpu import Encoded, FakeDriver, FakeGpu, Launched
from small_bundle import HereFarm, rows
from small_gemms import ON_COPIES, SPLIT, TILED_TMA_SPLIT, TMA, TRITON_VERSION, specs_of, target_of, write_module
from triton_launcher import parameters_by_triton

from genkern.compile.cache import BinaryCache
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.plan import LaunchPlan
from genkern.kernels.specs import plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.profiling.checking.guard import guarded, guarded_vector
from genkern.profiling.loaded_gemm import Launchable, LoadedGemm
from genkern.runtime.launch.cached_call import CachedBinaries
from genkern.timing.session import Budget, Session

torch = pytest.importorskip("torch")
ROWS = [(str(row.arch), row.problem, row.config) for row in rows() if row.choice != "vendor" and row.config]
# What bundles of the other tests do not have: operands that are copied first, of one row or column too, batches, bias.
ROWS += [("sm_90", GemmProblem(48, 96, 506), ON_COPIES)]
ROWS += [("sm_90", GemmProblem(1, 536, 174, row_major_b=True), ON_COPIES)]
ROWS += [("sm_90", GemmProblem(536, 1, 174), ON_COPIES)]
ROWS += [("sm_90", GemmProblem(48, 96, 512, "batched_a16w16", own=(("batch_size", 3),)), TILED_TMA_SPLIT)]
ROWS += [("sm_90", GemmProblem(48, 96, 512, bias=True), SPLIT)]


class Bench:
    """A module with its operands on the CPU, and the binaries of a config of it."""

    def __init__(
        self, folder: Path, cache: Path, gpu: FakeGpu, arch: str, problem: GemmProblem, config: Config
    ) -> None:
        target = target_of(arch)
        module = generate(problem, [config], arch)
        path = write_module(folder, module)
        specs = specs_of(module, config)
        farm = HereFarm(BinaryCache(cache / "binaries"), target, TRITON_VERSION, jobs=1, timeout_s=60)
        made = {result.key: result for result in farm.compile(str(path), specs)}
        self.binaries = [made[farm.key(spec)] for spec in specs]
        assert all(isinstance(each, Binary) for each in self.binaries)
        of, gpu_kind = product_of(problem, get_op(problem.op), arch), gpu_for_arch(arch)
        plan, self.run_time = plan_text(of, config, gpu_kind), run_time_values(config)
        folders = tuple(str(each.path) for each in self.binaries if isinstance(each, Binary))
        self.launchable = Launchable(config.name, folders, plan, self.run_time)
        self.plan = LaunchPlan.from_json(plan)
        session = Session(str(path), problem, arch, 0, ".", Budget(rotating_mb=4))
        loaded = CachedBinaries(gpu, target.backend, target.warp_size)
        self.gemm = LoadedGemm(session, "cpu", loaded)
        self.driver: FakeDriver = gpu.driver
        self.problem = problem

    def said(self, number: int) -> dict[str, Any]:
        """Triton's metadata of the binary with this number."""
        said: dict[str, Any] = json.loads((Path(self.launchable.binaries[number]) / "kernel.json").read_bytes())
        return said

    def require(self, launched: Sequence[Launched], tensors: Mapping[str, Any]) -> None:
        """What was launched is what Triton's launcher launches on these tensors."""
        known = {"units": self.gemm.units, **self.run_time}
        assert len(launched) == len(self.plan.launches)
        for number, (planned, found) in enumerate(zip(self.plan.launches, launched, strict=True)):
            said, binary = self.said(number), self.binaries[number]
            assert isinstance(binary, Binary)
            x, y, z = planned.programs(known)
            assert found.symbol == binary.symbol
            assert found.symbol.startswith(planned.symbol)
            assert (found.grid, found.cluster) == ((x * planned.cluster, y, z), planned.cluster)
            assert found.threads == said["num_warps"] * said["target"]["warp_size"]
            assert (found.shared_bytes, found.stream) == (said["shared"], 7)
            assert found.starts_early == bool(said.get("launch_pdl"))
            wanted = parameters_by_triton(planned, tensors, known, said)
            assert len(wanted) == len(found.parameters)
            for mine, other in zip(found.parameters, wanted, strict=True):
                assert (self.driver.map_in(mine) if isinstance(other, Encoded) else mine) == other


@pytest.mark.parametrize(
    ("arch", "problem", "config"), drawn(ROWS, 12), ids=lambda value: getattr(value, "name", value)
)
def test_a_call_passes_what_triton_s_launcher_passes(
    gpu: FakeGpu, tmp_path: Path, cache_dir: Path, arch: str, problem: GemmProblem, config: Config
) -> None:
    """Kernels, grids, clusters, threads and shared memory, and every parameter, of each copy of the weights."""
    builder = Bench(tmp_path, cache_dir, gpu, arch, problem, config)
    gemm, known = builder.gemm, {"units": builder.gemm.units, **builder.run_time}
    call = gemm.bind(builder.launchable)
    scratch = gemm._workspace.for_plan(builder.plan, known)
    assert gemm.copies > 1
    for copy in (0, 1, gemm.copies - 1, gemm.copies):
        gpu.driver.launched.clear()
        call(copy)
        builder.require(gpu.driver.launched, {**gemm.operands_of(copy % gemm.copies), **scratch})


@pytest.mark.parametrize(
    ("arch", "problem", "config"), drawn(ROWS, 12), ids=lambda value: getattr(value, "name", value)
)
def test_a_check_passes_what_triton_s_launcher_passes(
    gpu: FakeGpu, tmp_path: Path, cache_dir: Path, arch: str, problem: GemmProblem, config: Config
) -> None:
    """On operands between guard bands, and on slices of larger matrices, and on buffers of the check's own."""
    builder = Bench(tmp_path, cache_dir, gpu, arch, problem, config)
    subject = builder.gemm.subject(builder.launchable)
    for sliced in (False, True):
        placed = {
            operand.name: guarded(operand, builder.gemm.operands[operand.name].dtype, "cpu", sliced=sliced)
            for operand in get_op(problem.op).operands(problem)
        }
        placed |= {made.name: guarded_vector(made.elements, made.dtype, "cpu") for made in subject.buffers}
        tensors = {name: place.tensor for name, place in placed.items()}
        # Every format's slices reach its kernels: as far apart as they were promised.
        assert subject.refuses(tensors) == ""
        gpu.driver.launched.clear()
        subject.launch(tensors)
        builder.require(gpu.driver.launched, tensors)


def test_slices_that_no_user_s_call_may_have_are_refused(gpu: FakeGpu, tmp_path: Path, cache_dir: Path) -> None:
    """In the words of the dispatcher's own call: a kernel would misread them."""
    builder = Bench(tmp_path, cache_dir, gpu, "sm_90", GemmProblem(100, 384, 512), TMA)
    subject = builder.gemm.subject(builder.launchable)
    a = torch.zeros(100, 512 + 4, dtype=torch.bfloat16)[:, :512]
    tensors = {**builder.gemm.operands, "a": a}
    assert subject.refuses(tensors) == "rows of a are 1032 bytes apart, no multiple of 16"
    assert (
        subject.refuses({**tensors, "a": a.t().contiguous().t()})
        == "elements of a row are 100 elements apart, not contiguous"
    )
    assert not gpu.driver.launched


def test_configs_of_a_binary_share_all_but_numbers(gpu: FakeGpu, tmp_path: Path, cache_dir: Path) -> None:
    """The binary is loaded once, the plan read once; grid and numbers are each config's own."""
    builder = Bench(tmp_path, cache_dir, gpu, "sm_90", GemmProblem(100, 320, 512), SPLIT)
    loads: list[str] = []
    load = gpu.driver.function

    def function(device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        loads.append(symbol)
        return load(device, sha256, image, symbol, shared_bytes)

    gpu.driver.function = function  # type: ignore[method-assign]
    grids = []
    for group, split in ((4, 4), (1, 2), (8, 3)):
        config = replace(SPLIT, GROUP_SIZE_M=group, SPLIT_K=split)
        launchable = replace(builder.launchable, name=config.name, run_time=run_time_values(config))
        gpu.driver.launched.clear()
        builder.gemm.bind(launchable)(0)
        main, reduction = gpu.driver.launched
        numbers = [int.from_bytes(each, "little") for each in main.parameters if len(each) == 4]
        assert numbers[-2:] == [group, split]
        grids.append((main.grid, reduction.grid))
    tiles = math.ceil(100 / SPLIT.BLOCK_SIZE_M) * math.ceil(320 / SPLIT.BLOCK_SIZE_N)
    assert [main for main, _ in grids] == [(tiles, split, 1) for split in (4, 2, 3)]
    assert len(loads) == len(set(loads)) == 2
