"""The order in which kernels are worth having before anything is measured."""

from __future__ import annotations

from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.ranked import ranked
from genkern.space.prune import prune
from genkern.space.space import load_space


def test_every_config_has_a_place_and_always_the_same() -> None:
    """Whatever the order in which they are given, as far as the ranking tells them apart."""
    gpu, problem = gpu_for_arch("gfx942"), GemmProblem(64, 1280, 8192)
    configs = list(prune(load_space("amd_quick", "gfx942", "a16w16"), problem, gpu).kept)
    order = ranked(problem, configs, gpu)
    assert sorted(order) == sorted(configs)
    assert ranked(problem, configs, gpu) == order
