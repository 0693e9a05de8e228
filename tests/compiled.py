"""Real compiles of generated kernels, for tests of formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from small_gemms import job_for, specs_of, write_module

from genkern.farm.compiler import compile_kernel
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.family import FAMILIES
from genkern.kernels.generate import generate


def compile_all(folder: Path, problem: GemmProblem, configs: Sequence[Config], arch: str) -> list[Binary]:
    """The binaries of those of `configs` that `arch` has; raises AssertionError with the compiler's words."""
    made = []
    here = [config for config in configs if arch.startswith("sm_") or FAMILIES[config.family].runs_on_amd]
    module = generate(problem, here, arch)
    path = write_module(folder, module)
    for config in here:
        for spec in specs_of(module, config):
            result = compile_kernel(job_for(spec, path, arch, folder / "cache"), str(folder))
            assert isinstance(result, Binary), (config.name, spec.function, result)
            made.append(result)
    return made
