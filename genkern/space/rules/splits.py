"""The pruning rule about results that may differ from run to run.

A rule returns True to drop a config.
"""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import is_deterministic


def not_deterministic(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Family whose result may differ from run to run (--deterministic).

    genkern: float additions by atomics happen in the order in which programs end (Form.deterministic).
    """
    return not is_deterministic(problem, config)
