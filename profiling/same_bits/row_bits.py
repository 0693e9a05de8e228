"""RowChecking: whether a row of C has the same bits whatever else is computed, and the same bits as in other kernels.

Inputs are normal deviates, for which every order of additions gives different bits
(genkern.kernels.contract.sum_order). A call is repeated, made once with its rows at other positions beside other rows
(`moved`), and both are made concurrently on streams and in graphs (genkern.profiling.checking.concurrent_calls). Equal
rows must have equal bits, also in `reference`, another kernel that should add in the same order. Some rows, the pool,
are the same for all M; `row_bits` digests their results, to be compared among problems that differ only in M.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.kernels.refusal import refused_by_device, refused_by_library
from genkern.ops.op import Op
from genkern.profiling.checking.alphabet import choose_alphabet
from genkern.profiling.checking.concurrent_calls import fault_together
from genkern.profiling.checking.guard import first_true
from genkern.profiling.checking.inputs import Round, fill
from genkern.profiling.checking.verdict import Subject
from genkern.profiling.same_bits.moved_rows import Tensors, as_bits, moved, row_operands
from genkern.timing.libraries import VENDOR

# Number of rows in the pool, and hexadecimal digits per row in `row_bits`.
POOL, DIGITS = 32, 8
# Seeds that no other check uses.
_SEED, _OTHERS, _PLACES = 7_919, 1, 2


@dataclass(frozen=True)
class RowVerdict:
    """The result of a comparison.

    message: the first row with different bits and the call in which it occurred, or ""
    row_bits: DIGITS digits for each pool row in the batch, in the pool's order; "" if there is no pool
    rows: number of rows compared
    """

    message: str
    row_bits: str = ""
    rows: int = 0


@dataclass
class RowChecking:
    """Compares calls of one problem on one device.

    `like`: a tensor for each operand; the inputs get its type.
    """

    problem: GemmProblem
    op: Op
    like: Mapping[str, Any]
    seed: int = 0

    def check(self, subject: Subject, reference: Subject | None = None) -> RowVerdict:
        """Compare the subject's calls, and the reference's, to the bit. Raises what a launch raises."""
        base = self._tensors
        expected = self.bits_of(subject)
        compared = 0
        again: list[tuple[str, Subject]] = [("in a second call", subject)]
        if reference is not None:
            again.append(("than the reference of this order of sums", reference))
        for how, other in again:
            compared += _rows(expected)
            if message := _other_rows(self.bits_of(other), expected, how):
                return RowVerdict(message, rows=compared)
        lanes = [self._lane(base, subject)]
        wanted = [(expected, slice(None))]
        if (other := self._moved) is not None:
            lanes.append(self._lane(other.tensors, subject))
            wanted.append((expected.index_select(-2, other.before), other.after))
            lanes[1]["c"].fill_(float("nan"))
            subject.launch(dict(lanes[1]))
            if message := self._fault(lanes[1], *wanted[1], "at other positions, beside other rows"):
                return RowVerdict(message, rows=compared)
        counted = [0]

        def fault(lane: int) -> str:
            counted[0] += _rows(wanted[lane][0])
            return self._fault(lanes[lane], *wanted[lane], "beside another call")

        names = [buffer.name for buffer in subject.buffers]
        message = fault_together(subject.launch, lanes, names, fault)
        if message:
            return RowVerdict(message, rows=compared + counted[0])
        return RowVerdict("", self._row_bits(expected), compared + counted[0])

    def bits_of(self, subject: Subject) -> Any:
        """Return C of a single call as a new tensor of integers. Raises what the launch raises."""
        lane = self._lane(self._tensors, subject)
        lane["c"].fill_(float("nan"))
        subject.launch(dict(lane))
        return as_bits(lane["c"]).clone()

    def _lane(self, tensors: Tensors, subject: Subject) -> Tensors:
        """Return the operands of a call together with a workspace of its own."""
        import torch

        device = self.like["c"].device
        made = {
            buffer.name: (torch.zeros if buffer.zero else torch.empty)(
                buffer.elements, dtype=buffer.dtype, device=device
            )
            for buffer in subject.buffers
        }
        return {**tensors, **made}

    def _fault(self, lane: Tensors, wanted: Any, rows: Any, how: str) -> str:
        found = as_bits(lane["c"])
        found = found if isinstance(rows, slice) else found.index_select(-2, rows)
        return _other_rows(found, wanted, how)

    @cached_property
    def _moved(self) -> Any:
        others = self._filled(_OTHERS)
        return moved(self.problem, self.op, self._tensors, others, self.seed * 1009 + _SEED)

    @cached_property
    def _tensors(self) -> Tensors:
        """The operands, with the pool's rows at random positions of A."""
        tensors = self._filled(0)
        if (places := self._places) is not None:
            of_pool = replace(self.problem, M=POOL)
            pool = self._filled(_PLACES, of_pool, {operand.name for operand in row_operands(of_pool, self.op)})
            for operand in row_operands(self.problem, self.op):
                if operand.role != "output" and operand.name in pool:
                    rows = as_bits(pool[operand.name]).index_select(-2, self._pool_rows)
                    as_bits(tensors[operand.name]).index_copy_(-2, places, rows)
        return tensors

    @cached_property
    def _places(self) -> Any:
        """Positions of the pool's rows in A; None if the problem has no pool."""
        import torch

        if not row_operands(self.problem, self.op):
            return None
        generator = torch.Generator().manual_seed(self.seed + _SEED)
        places = torch.randperm(self.problem.M, generator=generator)[:POOL]
        return places.to(self.like["c"].device)

    @property
    def _pool_rows(self) -> Any:
        import torch

        return torch.arange(len(self._places), device=self.like["c"].device)

    def _filled(self, number: int, problem: GemmProblem | None = None, names: set[str] | None = None) -> Tensors:
        """Return operands of normal deviates, different for each `number`; only the operands in `names` if given."""
        import torch

        problem = problem or self.problem
        operands = self.op.operands(problem)
        alphabet = choose_alphabet(operands, self.op.largest_exact(problem))
        device = self.like["c"].device
        tensors: Tensors = {}
        for operand in operands:
            if names is None or operand.name in names:
                like = self.like[operand.name]
                same = tuple(like.shape) == tuple(operand.tensor_shape)
                # The problem's own operands keep their strides too.
                tensors[operand.name] = torch.empty_like(like) if same else _as_stored(operand, like.dtype, device)
        fill(
            *(tensors, operands, alphabet, Round("random", bends=problem.activation != "none")),
            few=False,
            seed=self.seed * 7 + _SEED + number,
            encode=lambda operand, numbers, generator: self.op.encode(problem, operand, numbers, generator),
            encodes=self.op.encodes,
        )
        return tensors

    def _row_bits(self, bits: Any) -> str:
        if self._places is None:
            return ""
        rows = bits.index_select(-2, self._places).cpu()
        rows = rows.unsqueeze(0) if rows.dim() == 2 else rows
        return "".join(
            hashlib.sha256(rows[:, row].contiguous().numpy().tobytes()).hexdigest()[:DIGITS]
            for row in range(rows.shape[1])
        )


def _as_stored(operand: Any, dtype: Any, device: Any) -> Any:
    import torch

    made = torch.empty(operand.storage_shape, dtype=dtype, device=device)
    return made if operand.row_major else made.transpose(-1, -2)


def _rows(bits: Any) -> int:
    return int(bits.numel() // max(1, bits.shape[-1]))


def _other_rows(found: Any, wanted: Any, how: str) -> str:
    """Return a message about the first row that differs and the number of rows that do, or ""."""
    other = found != wanted
    rows = other.any(-1).flatten()
    count = int(rows.sum().item())
    if not count:
        return ""
    return f"rows have other bits {how}: the first is row {first_true(rows)}; {count:,} of {rows.numel():,} differ"


# `rows`: whether the rows of a config, or of a library call, have the same bits in all calls, and the bits of a
# "reference" config if there is one.
# `alike`: which configs give all rows the same bits as a library call.
Answer = dict[str, Any]


def compared(checking: RowChecking, request: dict[str, Any], subject_of: Callable[[dict[str, Any]], Subject]) -> Answer:
    """Return the answer to a request.

    Raises what a launch raises, except for `alike`: a call that the library refuses is left out.
    """
    if request["command"] == "alike":
        return {"alike": _alike(checking, request, subject_of)}
    reference = request.get("reference")
    verdict = checking.check(subject_of(request), subject_of(reference) if reference else None)
    return {"config": request["config"], **asdict(verdict)}


def _alike(
    checking: RowChecking, request: dict[str, Any], subject_of: Callable[[dict[str, Any]], Subject]
) -> dict[str, str]:
    """Return for each call the first config with the same bits; calls without such a config are missing."""
    calls: dict[str, Any] = {}
    for name in request["calls"]:
        try:
            calls[name] = checking.bits_of(subject_of({"config": name, "binaries": []}))
        except Exception as error:
            if not (refused_by_library(error) if name == VENDOR else refused_by_device(error)):
                raise
    alike: dict[str, str] = {}
    for candidate in request["candidates"] if calls else ():
        bits = checking.bits_of(subject_of(candidate))
        for name, of_call in calls.items():
            if name not in alike and bool((bits == of_call).all()):
                alike[name] = candidate["config"]
    return alike
