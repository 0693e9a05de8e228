"""Whether two runs of a config agree to the bit (--deterministic)."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.family import FAMILIES
from genkern.ops.op import get_op


def is_deterministic(problem: GemmProblem, config: Config) -> bool:
    """False for float sums whose order is that in which programs happen to run: tiled_atomic's.

    Its int32 sums (int8 operands) are exact in any order, so they count as deterministic.
    """
    return FAMILIES[config.family].deterministic or get_op(problem.op).accumulator(problem) == "int32"
