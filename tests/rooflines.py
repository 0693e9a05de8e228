"""The least that a product can take, which no prediction may be below."""

from __future__ import annotations

from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import bytes_moved
from genkern.search.cost_model.predict import peak_tflops


def roofline_us(problem: GemmProblem, gpu: Gpu) -> float:
    """The least time of `problem` on `gpu` in microseconds, by peak compute and peak bandwidth."""
    compute_us = problem.flops / peak_tflops(problem, gpu) * 1e-6
    return max(compute_us, bytes_moved(problem) / gpu.memory_tb_per_s * 1e-6)
