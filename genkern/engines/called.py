"""What engines call: which format each of their products is, its operator, and whether it has winners."""

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
from genkern.runtime.context import Context
from genkern.runtime.default import default_context
from genkern.runtime.given import row_majors
from genkern.runtime.launch.prepared import LiveGpu
from genkern.runtime.torch_ops import gemm_of

# Operands in 16 bits; in 8 with a scale for all or for each row and column; in 8 with scales of blocks; batches in 16.
WIDE, SCALED, IN_BLOCKS, BATCHED = DEFAULT_OP, "a8w8", "a8w8_blockscale", "batched_a16w16"
# Who won where none of genkern's kernels did.
_LIBRARY = tuple(choice for choice in CHOICES if choice != CONFIG_WINS)


@dataclass(frozen=True)
class Product:
    """A product by one weight [N, K], whatever x's rows: what a layer of an engine computes.

    `dtype_x` and `dtype_out` are PyTorch's, `own` the format's own fields as words.
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
        """Returns the product with M = 1, as bundles have it; nothing if genkern lacks one of its types."""
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
        """Returns the M for which a bundle of this process has a row, on the weight's GPU; () if no kernel won any."""
        context = default_context()
        gpu, problems = context.gpu(self.weight.get_device()), self.problems()
        return () if gpu is None or not problems else tuned_of(context, gpu, *problems)


def tuned_of(context: Context, gpu: LiveGpu, problem: GemmProblem) -> tuple[int, ...]:
    """For which M the problem is tuned, where a kernel of genkern's won for any: else nothing is gained."""
    if get_op(problem.op).refuse(problem, gpu.identity.arch):
        return ()
    found = context.tuned(gpu, problem)
    # A call for which few bits of a sum are good enough is served by winners with all of them too.
    if multiplies_float8(problem) and not get_op(problem.op).refuse(as_full(problem), gpu.identity.arch):
        found = [*found, *context.tuned(gpu, as_full(problem))]
    wins = any(who.partition(" ")[0] not in _LIBRARY for _, who in found)
    return tuple(sorted({m for m, _ in found})) if wins else ()


def operator(op: str) -> Callable[..., Any]:
    """Returns torch.ops.genkern.gemm_<format>: one call in traced programs, which chooses by M when it runs."""
    made = gemm_of(op).operator
    assert made is not None
    return made


def say_once(subject: object, line: str, level: int = logging.INFO) -> None:
    """Logs one line of a subject, the first time only."""
    default_context().say(subject, line, level)
