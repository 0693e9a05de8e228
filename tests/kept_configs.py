"""Configs that pruning leaves of a target's default space: worked out once in a process, when a test asks."""

from __future__ import annotations

from functools import cache

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.prune import prune
from genkern.space.space import load_space


@cache
def kept_configs(problem: GemmProblem, arch: str) -> tuple[Config, ...]:
    """All of them, in the space's order."""
    return tuple(prune(load_space(None, arch, problem.op), problem, gpu_for_arch(arch)).kept)
