"""The cost model's term for kernels that copy operands before the product."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of
from genkern.kernels.families.alignment_copy import copied_operands
from genkern.ops.op import get_op
from genkern.search.cost_model.splits import another_us, moved_us


def realigning_us(problem: GemmProblem, config: Config, gpu: Gpu) -> float:
    """Return the microseconds in which the operands that the config copies are read and written; 0 if it copies
    none."""
    if not form_of(config).realigned:
        return 0.0
    a, b, *_ = get_op(problem.op).operands(problem)
    copied = copied_operands(problem)
    copied_bytes = sum(operand.size_bytes for operand in (a, b) if operand.name in copied)
    return another_us(gpu) + moved_us(2 * copied_bytes, gpu)
