"""What engines call: which format each of their products is, its operator, and whether it has winners."""

from __future__ import annotations

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

    def tuned(self) -> tuple[int, ...]:
        """For which M a bundle of this process has a winner, or the library's word, on the weight's GPU."""
        return self.tuned_on(self.weight.get_device())

    def tuned_on(self, device: int) -> tuple[int, ...]:
        """The same on the device with PyTorch's number, for a weight that is not there yet (on "meta")."""
        context = default_context()
        gpu = context.gpu(device)
        types = [BY_TORCH.get(str(each)) for each in (self.dtype_x, self.weight.dtype, self.dtype_out)]
        if gpu is None or None in types:
            return ()
        n, k = map(int, self.weight.shape)
        of_x, of_weight, out = map(str, types)
        problem = GemmProblem(
            *(1, n, k, self.op, of_x, of_weight, out),
            row_major_b=not row_majors(self.weight)[0],
            bias=self.bias,
            own=parse_own(get_op(self.op).fields, dict(self.own)),
        )
        return tuned_of(context, gpu, problem)


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


# Those that were asked for, by format: what traced code reads, which cannot take a lock.
OPERATORS: dict[str, Callable[..., Any]] = {}


def operator(op: str) -> Callable[..., Any]:
    """torch.ops.genkern.gemm_<format>: tracing sees one call of it, whose M is looked at when it runs."""
    made = gemm_of(op).operator
    assert made is not None
    OPERATORS[op] = made
    return made


def say_once(subject: object, line: str) -> None:
    """One line of log of a subject."""
    default_context().say(subject, line)
