"""Small problems and configs that several tests use, and what they do with them."""

from __future__ import annotations

import ast
import importlib.metadata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from genkern.compile.compiler import CompileJob
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.product import product_of
from genkern.kernels.contract.variant import Variant
from genkern.kernels.generate import GeneratedModule, generate
from genkern.kernels.kernel import KernelSpec, Target
from genkern.kernels.legality import legal
from genkern.kernels.source import load_module
from genkern.kernels.specs import call_of, kernel_specs
from genkern.ops.op import get_op

TRITON_VERSION = importlib.metadata.version("triton")
TILED = Config("tiled", 64, 32, 32, 4, 1, 4, 2)
SPLIT = Config("tiled", 64, 32, 32, 4, 4, 4, 2)
TMA = Config("persistent_tma", 64, 64, 64, 4, 1, 4, 3)
TMA_SPECIALIZED = Config("persistent_tma", 64, 64, 64, 4, 1, 4, 3, specialized=1)
TILED_TMA = Config("tiled_tma", 64, 32, 64, 4, 1, 4, 3)
TILED_TMA_SPLIT = Config("tiled_tma", 64, 32, 64, 4, 3, 4, 3)
SPLIT_TMA = Config("tiled_tma", 64, 32, 64, 4, 3, 4, 3, reduce="kernel")
SEMAPHORE = Config("tiled", 64, 32, 32, 4, 3, 4, 2, reduce="semaphore")
SWAPPED = Config("tiled", 16, 64, 32, 4, 3, 4, 2, reduce="semaphore", swapped=1)
TMA_SWAPPED = Config("tiled_tma", 16, 64, 64, 4, 3, 4, 3, swapped=1)
FEW_ROWS = Config("skinny", 4, 4, 128, 1, 3, 4, 1)
GEMV = Config("gemv", 16, 16, 128, 1, 1, 4, 1)
WARP_SPECIALIZED = Config("warp_specialized", 64, 176, 64, 4, 1, 4, 3)
WARP_SPECIALIZED_SPLIT = Config("warp_specialized", 128, 112, 64, 4, 3, 8, 4)
WARP_SPECIALIZED_SWAPPED = Config("warp_specialized", 104, 128, 64, 4, 1, 4, 3, swapped=1)
WARP_SPECIALIZED_SWAPPED_SPLIT = Config("warp_specialized", 24, 64, 128, 1, 3, 4, 3, swapped=1)
ON_COPIES = Config("tiled_tma", 64, 32, 64, 4, 1, 4, 3, realigned=1)
WARP_SPECIALIZED_ON_COPIES = Config("warp_specialized", 64, 176, 64, 4, 1, 4, 3, realigned=1)
CLUSTER = Config("warp_specialized", 24, 64, 64, 1, 1, 4, 4, cluster_k=2, swapped=1)
AMD = Config("tiled", 64, 32, 32, 4, 1, 4, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=1)
AMD_SPLIT = Config("tiled", 64, 32, 32, 4, 4, 4, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=1)
XCD = Config(
    "tiled", 64, 32, 32, 4, 1, 4, 2, waves_per_eu=2, matrix_instr_nonkdim=16, kpack=1, xcd_remap=1, cache_modifier=".cg"
)
XCD_SPLIT = Config("tiled", 64, 32, 32, 4, 4, 4, 2, xcd_remap=1)


def taking(problem: GemmProblem) -> list[Config]:
    """The configs above, one or two of each family, that take this problem on sm_90, which has all families."""
    gpu = gpu_for_arch("sm_90")
    configs = [TILED, SPLIT, AMD_SPLIT, XCD, XCD_SPLIT, SEMAPHORE, replace(SEMAPHORE, SPLIT_K=1)]
    configs += [FEW_ROWS, SWAPPED]
    configs += [TMA, TMA_SPECIALIZED, TILED_TMA, TILED_TMA_SPLIT, SPLIT_TMA, TMA_SWAPPED]
    configs += [WARP_SPECIALIZED, WARP_SPECIALIZED_SPLIT, WARP_SPECIALIZED_SWAPPED, WARP_SPECIALIZED_SWAPPED_SPLIT]
    configs += [ON_COPIES, WARP_SPECIALIZED_ON_COPIES]
    return [config for config in (*configs, CLUSTER, GEMV) if not legal(problem, config, gpu)]


def write_module(folder: Path, module: GeneratedModule) -> Path:
    """Write a generated module and return its path."""
    path = folder / module.file_name
    path.write_text(module.text, encoding="utf-8")
    return path


def make_module(
    folder: Path, problem: GemmProblem, configs: Sequence[Config], arch: str
) -> tuple[GeneratedModule, ModuleType]:
    """Generate a module and import it; without Triton's interpreter its kernels can be compiled, not run."""
    module = generate(problem, configs, arch)
    return module, load_module(str(write_module(folder, module)))


def specs_of(module: GeneratedModule, config: Config) -> tuple[KernelSpec, ...]:
    """What the farm compiles for one config."""
    return kernel_specs(module.problem, config, get_op(module.problem.op), module.source_sha256, module.arch)


def variants_of(problem: GemmProblem, config: Config) -> list[Variant]:
    """The kernels of one call, in the order in which they are launched."""
    of = product_of(problem, get_op(problem.op), "sm_90")
    return [kernel.variant for kernel in call_of(of, config).kernels]


def target_of(arch: str) -> Target:
    """Triton's target for an architecture."""
    return Target(*triton_target(gpu_for_arch(arch)))


def job_for(spec: KernelSpec, path: Path, arch: str, cache: Path, timeout_s: float = 60.0) -> CompileJob:
    """The farm's job for one kernel of the module at `path`."""
    target = target_of(arch)
    return CompileJob(spec.key(target, TRITON_VERSION), str(path), spec, target, str(cache), timeout_s)


def _interpreter_problem() -> str:
    try:
        numpy, torch = (importlib.metadata.version(package) for package in ("numpy", "torch"))
    except importlib.metadata.PackageNotFoundError:
        return "Triton's interpreter needs NumPy and PyTorch"
    del torch
    if TRITON_VERSION.startswith("3.6") and tuple(map(int, numpy.split(".")[:2])) >= (2, 4):
        return "the interpreter of Triton 3.6 needs NumPy < 2.4"
    return ""


needs_interpreter = pytest.mark.skipif(bool(_interpreter_problem()), reason=_interpreter_problem() or "it works")


def kernels_of(module: GeneratedModule) -> dict[str, str]:
    """Source text of each Triton kernel of a module, decorator included."""
    lines = module.text.splitlines()
    found = {}
    for node in ast.parse(module.text).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            found[node.name] = "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno])
    return found
