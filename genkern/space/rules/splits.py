"""The pruning rule about results that may differ from run to run.

A rule returns True to drop a configs.
"""

from __future__ import annotations

from genkern.gemm.columns import Mask
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import is_deterministic


def not_deterministic(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
    """Family whose result may differ from run to run (--deterministic).

    genkern: float additions by atomics happen in the order in which programs end (Form.deterministic).
    """
    return not is_deterministic(problem, configs)
