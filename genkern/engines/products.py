"""The products that engines call: the number format of each, its operator, and the M for which it has winners."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from genkern.gemm.dtypes import BY_TORCH
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.gemm.records import CHOICES, CONFIG_WINS
from genkern.ops.accumulate import as_full, multiplies_float8
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op
from genkern.runtime.calls.call_arguments import row_majors
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.prepared_call import LiveGpu
from genkern.runtime.process.default_context import default_context
from genkern.runtime.process.torch_ops import gemm_of

# Formats: 16-bit operands; 8-bit operands with one scale each, or with scales of rows and columns; 8-bit operands with
# scales of blocks; batches of 16-bit operands.
WIDE, SCALED, IN_BLOCKS, BATCHED = DEFAULT_OP, "a8w8", "a8w8_blockscale", "batched_a16w16"
# The choices in which the library is called.
_LIBRARY = tuple(choice for choice in CHOICES if choice != CONFIG_WINS)


@dataclass(frozen=True)
class Product:
    """The product that a layer of an engine computes: x [M, K] by one weight [N, K], for any M.

    op: the number format
    dtype_x, dtype_out: PyTorch types
    own: the format's own fields, as strings
    """

    op: str
    weight: Any
    dtype_x: Any
    dtype_out: Any
    bias: bool = False
    own: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> str:
        """The weight's dimensions, NxK."""
        n, k = self.weight.shape
        return f"{n}x{k}"

    def problems(self) -> tuple[GemmProblem, ...]:
        """Returns a tuple with the product's problem for M = 1; () if genkern has no name for one of its types."""
        types = [BY_TORCH.get(str(each)) for each in (self.dtype_x, self.weight.dtype, self.dtype_out)]
        if None in types:
            return ()
        n, k = map(int, self.weight.shape)
        of_x, of_weight, out = map(str, types)
        problem = GemmProblem(
            *(1, n, k, self.op, of_x, of_weight, out),
            row_major_b=not row_majors(self.weight)[0],
            bias=self.bias,
            own=parse_own(get_op(self.op).fields, dict(self.own)),
        )
        return (problem,)

    def tuned(self) -> tuple[int, ...]:
        """Returns the M for which bundles have rows on the weight's GPU; () if genkern's kernels won for no M."""
        context = default_context()
        gpu, problems = context.gpu(self.weight.get_device()), self.problems()
        return () if gpu is None or not problems else tuned_of(context, gpu, *problems)


def tuned_of(context: Context, gpu: LiveGpu, problem: GemmProblem) -> tuple[int, ...]:
    """Returns the M for which the problem is tuned; () if only the library won, or if the format refuses it."""
    if get_op(problem.op).refuse(problem, gpu.identity.arch):
        return ()
    found = context.tuned(gpu, problem)
    # Winners with `full` sums also serve calls that accept `fast` sums.
    if multiplies_float8(problem) and not get_op(problem.op).refuse(as_full(problem), gpu.identity.arch):
        found = [*found, *context.tuned(gpu, as_full(problem))]
    wins = any(who.partition(" ")[0] not in _LIBRARY for _, who in found)
    return tuple(sorted({m for m, _ in found})) if wins else ()


def operator(op: str) -> Callable[..., Any]:
    """Returns torch.ops.genkern.gemm_<format>: one call in traced programs, which chooses by M when it runs."""
    made = gemm_of(op).operator
    assert made is not None
    return made


def log_once(subject: object, line: str, level: int = logging.INFO) -> None:
    """Logs one line of a subject, the first time only."""
    default_context().say(subject, line, level)
