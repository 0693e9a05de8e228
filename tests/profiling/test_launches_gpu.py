"""Kernels of every family on a GPU as the measured process launches them: proved right, and timed in a graph."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_gemms import TRITON_VERSION, specs_of, taking, target_of

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.gpus import detect_arch, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.contract.product import product_of
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.specs import plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.loaded_gemm import Launchable, LoadedGemm
from genkern.profiling.timers import GraphTimer
from genkern.timing.session import Budget, Session

pytestmark = pytest.mark.gpu
PROBLEMS = [
    GemmProblem(300, 520, 1024),
    GemmProblem(300, 512, 1024, bias=True),
    # What TMA loads is copied first.
    GemmProblem(100, 264, 506),
    GemmProblem(1, 1024, 4096),
    GemmProblem(48, 96, 512, "batched_a16w16", own=(("batch_size", 3),)),
    GemmProblem(64, 512, 1024, "a8w8", "int8", "int8"),
    GemmProblem(64, 512, 1024, "a8w8", "fp8e4m3fn", "fp8e4m3fn"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.name)
def test_every_family_is_right_as_it_is_launched(problem: GemmProblem, tmp_path: Path) -> None:
    """Exact, on slices, on random numbers, with nothing written outside; then timed in a graph, on cold weights."""
    arch = detect_arch() or "sm_90"
    kind, op = gpu_for_arch(arch), get_op(problem.op)
    configs = [config for config in taking(problem) if not legal(problem, config, kind)]
    assert configs
    module = generate(problem, configs, arch, kind)
    kernels, measured = tmp_path / "kernels.py", tmp_path / "measured.py"
    kernels.write_text(module.kernels_text)
    measured.write_text(module.measured_text)
    farm = Farm(BinaryCache(tmp_path / "cache"), target_of(arch), TRITON_VERSION, jobs=8, timeout_s=120.0)
    specs = {config: specs_of(module, config) for config in configs}
    made = {result.key: result for result in farm.compile(str(kernels), [each for of in specs.values() for each in of])}
    session = Session(str(measured), problem, arch, 0, str(tmp_path), Budget(rotating_mb=20))
    gemm, timer = LoadedGemm(session), GraphTimer("cudagraph")
    assert gemm.copies > 1
    checking = Checking(problem, op, arch, gemm.module.reference, gemm.operands)
    for config in configs:
        binaries = [made[farm.key(spec)] for spec in specs[config]]
        folders = tuple(binary.path for binary in binaries if isinstance(binary, Binary))
        assert len(folders) == len(binaries), (config.name, binaries)
        plan = plan_text(product_of(problem, op, arch), config, kind)
        launchable = Launchable(config.name, folders, plan, run_time_values(config))
        verdict = checking.check(gemm.subject(launchable))
        assert verdict.passed, (config.name, verdict.message)
        assert {"exact", "layout", "random"} <= set(verdict.rounds), (config.name, verdict.rounds)
        call = gemm.bind(launchable)
        assert timer.rough_us(call, 0) > 0
        assert 0 < timer.prepare(call, range(gemm.copies))() < 1e4, config.name
    farm.close()
