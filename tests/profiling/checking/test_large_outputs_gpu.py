"""Outputs of more than 2^31 and 2^32 elements on a GPU: every family that takes them is proved, in bounded memory.

With the memory that each check took beside A and B, over C's (`-s` shows it): 1 is C itself, between its guards.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_gemms import TRITON_VERSION, specs_of, taking, target_of

from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.config import Config, has_amd_options
from genkern.gemm.gpus import detect_arch, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.contract.product import product_of
from genkern.kernels.cute.release import cute_installed
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal
from genkern.kernels.specs import plan_text, run_time_values
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.loaded_gemm import Launchable, LoadedGemm
from genkern.timing.session import Budget, Session

pytestmark = pytest.mark.gpu
CUTE = [
    Config("cute_wgmma", 128, 128, 64, 4, 1, 8, 4, schedule=schedule, store=store)
    for schedule in ("cooperative", "ping_pong")
    for store in ("tma", "direct")
]
# 2^32 elements exactly, more than that, and partial sums of 2^31 beside a C of 2^30.
LARGE = [GemmProblem(65536, 65536, 64), GemmProblem(131072, 40960, 64)]
SPLIT = GemmProblem(32768, 32768, 128)


def configs_for(problem: GemmProblem, arch: str) -> list[Config]:
    """One or more of each form: K in two splits where C is small enough for their sums, else in one.

    But for the one that takes a second a call: programs of 4 x 4 elements without matrix units.
    """
    splits = 2 if problem == SPLIT else 1
    of_nvidia = [config for config in taking(problem) if config.family != "skinny" and not has_amd_options(config)]
    configs = [*of_nvidia, *(CUTE if cute_installed() else ())]
    made = dict.fromkeys(replace(config, SPLIT_K=min(config.SPLIT_K, splits)) for config in configs)
    gpu = gpu_for_arch(arch)
    return [each for each in made if not legal(problem, each, gpu) and (splits == 1 or each.SPLIT_K == 2)]


@pytest.mark.parametrize("problem", [*LARGE, SPLIT], ids=lambda problem: problem.size)
def test_large_outputs_are_proved(problem: GemmProblem, tmp_path: Path) -> None:
    """To the bit in exact rounds, on slices, on random numbers; beside A and B a check takes no more than twice C."""
    import torch

    arch = detect_arch() or "sm_90"
    kind, op = gpu_for_arch(arch), get_op(problem.op)
    configs = configs_for(problem, arch)
    assert len({config.family for config in configs}) > 2
    module = generate(problem, configs, arch, kind)
    kernels, measured = tmp_path / "kernels.py", tmp_path / "measured.py"
    kernels.write_text(module.kernels_text)
    measured.write_text(module.measured_text)
    farm = Farm(BinaryCache(tmp_path / "cache"), target_of(arch), TRITON_VERSION, jobs=12, timeout_s=120.0)
    specs = {config: specs_of(module, config) for config in configs}
    made = {result.key: result for result in farm.compile(str(kernels), [each for of in specs.values() for each in of])}
    farm.close()
    gemm = LoadedGemm(Session(str(measured), problem, arch, 0, str(tmp_path), Budget(rotating_mb=0)))
    checking = Checking(problem, op, arch, gemm.module.reference, gemm.operands)
    a, b, c = (operand.size_bytes for operand in op.operands(problem)[:3])
    for config in configs:
        binaries = [made[farm.key(spec)] for spec in specs[config]]
        folders = tuple(binary.path for binary in binaries if isinstance(binary, Binary))
        assert len(folders) == len(binaries), (config.name, binaries)
        plan = plan_text(product_of(problem, op, arch), config, kind)
        subject = gemm.subject(Launchable(config.name, folders, plan, run_time_values(config)))
        own = sum(buffer.elements * buffer.dtype.itemsize for buffer in subject.buffers)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() - checking._kept_bytes
        verdict = checking.check(subject)
        assert verdict.passed, (config.name, verdict.message)
        assert verdict.rounds == ("exact", "layout", "random"), (config.name, verdict.rounds)
        over_c = (torch.cuda.max_memory_allocated() - before - a - b - own) / c
        print(f"{problem.size} {config.name}: {verdict.seconds:.2f} s, check_memory_over_c {over_c:.3f}")
        # Guards of some MiB beside it.
        assert over_c <= 2.0 + 2**26 / c, config.name
