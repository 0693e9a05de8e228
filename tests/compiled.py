"""Real compiles of generated kernels in the test's own process."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from long_tests import in_turns
from small_gemms import job_for, specs_of, write_module

from genkern.compile.compiler import CompileJob, compile_kernel
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate

# Targets for which the kernels of every number format are compiled.
SHARING = ("sm_90", "gfx942", "gfx950")


def compile_here(job: CompileJob, folder: Path) -> Binary:
    """What the farm's processes make of a job, and their settings of Triton gone after it.

    Raises AssertionError with the compiler's words where it refuses.
    """
    from triton.runtime import cache

    with pytest.MonkeyPatch.context() as patch:
        for name in ("TRITON_CACHE_DIR", "TRITON_STORE_BINARY_ONLY", "TRITON_DISABLE_LINE_INFO", "TMPDIR"):
            patch.setenv(name, str(folder))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        patch.setattr(tempfile, "tempdir", tempfile.tempdir)
        patch.setattr(cache, "triton_key", cache.triton_key)
        result = compile_kernel(job, str(folder))
    assert isinstance(result, Binary), (job.spec.function, result)
    return result


def compile_all(
    folder: Path, problem: GemmProblem, configs: Sequence[Config], arch: str, sharing: Sequence[str] = SHARING
) -> list[Binary]:
    """The binaries of those of `configs` that `arch` has; raises AssertionError with the compiler's words.

    Except in `make test-long`, the targets `sharing` share out the configs that each of them has.
    """
    made = []
    here = [config for config in configs if not traits_of(config).needs]
    if arch in sharing and here:
        here = [*in_turns(here, min(len(sharing), len(here)), sharing.index(arch))]
    if arch.startswith("sm_"):
        here += [config for config in configs if traits_of(config).needs]
    module = generate(problem, here, arch)
    path = write_module(folder, module)
    for config in here:
        for spec in specs_of(module, config):
            made.append(compile_here(job_for(spec, path, arch, folder / "cache"), folder))
    return made
