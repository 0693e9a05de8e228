"""Checking: whether a kernel computes its GEMM, and touches nothing else.

    checking = Checking(problem, get_op(problem.op), "sm_90", module.reference, module.make_operands(device))
    verdict = checking.check(Subject(launch, buffers))

`launch(operands)` runs one call on tensors that are placed as told, on the current stream; how it does so is its own
business: the farm's binaries, a generated module's `matmul`, a library. Each round (`inputs.Round`) makes its own
inputs, lays them between guard bands (`guard`), fills C and workspaces with what gives no right result, launches, and
compares: exact rounds to the bit, signs of zeros aside; the random one, and activations whose last bits are open, by
`bound`. References are kept, so one
`Checking` serves all candidates of a problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import PROMOTED_K, is_full
from genkern.ops.op import Op, groups_of, has_exponents
from genkern.profiling.checking.accuracy import error_ratio, worst_row_error
from genkern.profiling.checking.alphabet import FLOAT8_BITS, choose_alphabet
from genkern.profiling.checking.bound import (
    FLOAT32,
    accumulator_roundoff,
    activation_error,
    keeps_few_bits,
    rounded_range,
    sum_error,
)
from genkern.profiling.checking.guard import Guarded, first_true, guarded, guarded_vector
from genkern.profiling.checking.inputs import FEW_PRODUCTS, Round, fill, rounds_of
from genkern.profiling.checking.wide_sums import shows_wide_sums
from genkern.timing.session import TOLERANCE

# A second call finds the workspace as the first left it.
_CALLS = 2


@dataclass(frozen=True)
class WorkBuffer:
    """What a kernel keeps between its steps: `zero` where it must be zero before a call and after it."""

    name: str
    elements: int
    dtype: Any
    zero: bool = False


@dataclass(frozen=True)
class Subject:
    """What is checked. `launch` gets all operands and buffers by name; `refuses` says why not with these, or "".

    A refusal concerns operands that are slices of larger matrices only: that round is then left out.
    """

    launch: Callable[[dict[str, Any]], object]
    buffers: tuple[WorkBuffer, ...] = ()
    refuses: Callable[[dict[str, Any]], str] = lambda operands: ""


@dataclass(frozen=True)
class Verdict:
    """What a check found. `message` says what is wrong first, "" when nothing is.

    `error_ratio` (AITER's) and `worst_row_error` are of the last round that ran: the random one when all passed.
    `rounds` names those that passed.
    """

    passed: bool
    message: str
    error_ratio: float
    worst_row_error: float
    rounds: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class _Reference:
    """What a round's result must be: from `low` to `high`, of C's type; one and the same where it must be exact.

    `expected` is the float32 reference, kept where `low` is not all there is to say.
    """

    low: Any
    high: Any
    expected: Any


@dataclass
class Checking:
    """Checks of one problem on one device.

    `reference(operands)` is the product with all that follows it in float32 [M, N], exact for exact inputs; `like` has
    a tensor for each operand, on the device, whose type the inputs get. `atol` and `rtol` are for `error_ratio` alone.
    """

    problem: GemmProblem
    op: Op
    arch: str
    reference: Callable[[dict[str, Any]], Any]
    like: Mapping[str, Any]
    seed: int = 0
    atol: float = TOLERANCE
    rtol: float = TOLERANCE
    _references: dict[Round, _Reference] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operands = self.op.operands(self.problem)
        bits = min(FLOAT8_BITS, capabilities_of(self.arch).fp8_sum_bits)
        self.alphabet = choose_alphabet(self.operands, self.op.largest_exact(self.problem), bits)
        self._full = is_full(self.problem)
        wide_sums = self._full and shows_wide_sums(self.operands)
        self.rounds = rounds_of(self.alphabet, self.problem.activation, wide_sums=wide_sums)
        # What is multiplied by units that may keep few bits of sums of fp8, but for fp8 that becomes bf16 before.
        self._multiplied = "bf16" if has_exponents(self.problem) else self.problem.dtype_a
        self._few = not self._full and keeps_few_bits(self._multiplied, self.arch)
        groups = groups_of(self.problem)
        # These are NaN in the reference, and must stay what C is filled with.
        self._leaves_rows = groups is not None and groups.capacity > 0

    def check(self, subject: Subject) -> Verdict:
        """Run all rounds, or up to the first that finds something. Raises what the launch raises."""
        started = time.monotonic()
        passed: list[str] = []
        ratio, row = 1.0, float("inf")
        message = ""
        for round_ in self.rounds:
            placed = self._inputs(round_)
            tensors = {name: place.tensor for name, place in placed.items()}
            buffers = {
                made.name: guarded_vector(made.elements, made.dtype, tensors["c"].device) for made in subject.buffers
            }
            tensors |= {name: place.tensor for name, place in buffers.items()}
            if round_.kind == "layout" and subject.refuses(tensors):
                continue
            for made in subject.buffers:
                if made.zero:
                    buffers[made.name].tensor.zero_()
            for _ in range(_CALLS if round_.kind == "exact" else 1):
                tensors["c"].fill_(float("nan"))
                subject.launch(dict(tensors))
                if message := self._fault(round_, subject, placed, buffers):
                    break
            if message or round_.kind == "random":
                expected, c = self._reference(round_, tensors).expected.float(), tensors["c"]
                if self._leaves_rows:
                    written = ~expected.isnan().any(-1)
                    expected, c = expected[written], c[written]
                ratio = error_ratio(c, expected, self.atol, self.rtol)
                row = worst_row_error(c, expected)
            if message:
                break
            if round_.kind not in passed:
                passed.append(round_.kind)
            # Before the next: together they are twice as large.
            del placed, tensors, buffers
        return Verdict(not message, message, ratio, row, tuple(passed), time.monotonic() - started)

    def _inputs(self, round_: Round) -> dict[str, Guarded]:
        c = self.like["c"]
        placed = {
            operand.name: guarded(operand, self.like[operand.name].dtype, c.device, sliced=round_.kind == "layout")
            for operand in self.operands
        }
        tensors = {name: place.tensor for name, place in placed.items()}
        self._fill(tensors, round_)
        return placed

    def _fill(self, tensors: dict[str, Any], round_: Round, *, magnitudes: bool = False) -> None:
        few, seed = self._few, self.seed
        fill(
            *(tensors, self.operands, self.alphabet, round_),
            few=few,
            seed=seed,
            encode=self._encode,
            magnitudes=magnitudes,
        )

    def _encode(self, operand: Operand, numbers: Any, generator: Any) -> Any:
        return self.op.encode(self.problem, operand, numbers, generator)

    def _reference(self, round_: Round, tensors: dict[str, Any]) -> _Reference:
        import torch

        if (known := self._references.get(round_)) is not None:
            return known
        expected, dtype_c, activation = self.reference(tensors), tensors["c"].dtype, self.problem.activation
        factor, beside, gain = self.op.error_beside(self.problem)
        error = activation_error(expected, activation) * gain
        if round_.kind == "random":
            names = [operand.name for operand in self.operands if operand.role != "output"]
            inputs = {name: torch.empty_like(tensors[name]) for name in names}
            self._fill(inputs, round_, magnitudes=True)
            magnitude = self.reference(inputs)
            products = min(self.problem.K, FEW_PRODUCTS if self._few else self.problem.K)
            accumulator = self.op.accumulator(self.problem)
            roundoff = accumulator_roundoff(accumulator, self._multiplied, self.arch)
            tf32 = self.op.as_tf32(self.problem)
            if self._full:
                # Sums of that many, then in float32 those of these sums.
                of_sums = sum_error(magnitude, roundoff, min(products, PROMOTED_K), activation)
                of_sums += sum_error(magnitude, FLOAT32, products, activation)
            else:
                of_sums = sum_error(magnitude, roundoff, products, activation, tf32)
            of_sums = factor * of_sums + beside * magnitude
            error = of_sums if gain == 1 else of_sums + error
        if isinstance(error, float):
            exact = expected.to(dtype_c)
            made = _Reference(exact, exact, exact)
        else:
            made = _Reference(*rounded_range(expected, error, dtype_c), expected)
        self._references[round_] = made
        return made

    def _fault(self, round_: Round, subject: Subject, placed: dict[str, Guarded], buffers: dict[str, Guarded]) -> str:
        """What is wrong after a call, "" when nothing is."""
        tensors = {name: place.tensor for name, place in placed.items()}
        reference = self._reference(round_, tensors)
        if wrong := _difference(tensors["c"], reference, self._leaves_rows):
            return f"{round_.name}: {wrong}"
        for name, place in {**placed, **buffers}.items():
            if (outside := place.first_outside()) is not None:
                row, column = outside
                where = f"row {row}, column {column}" if place.rows > 1 else f"element {column + row * place.pitch}"
                return f"{round_.name}: writes outside {name.upper() if len(name) == 1 else name} at {where}"
        for made in subject.buffers:
            left = buffers[made.name].tensor
            if made.zero and bool(left.any()):
                first = first_true(left != 0)
                return f"{round_.name}: leaves {left[first].item()} in {made.name}[{first}], not zero"
        return ""


def _difference(actual: Any, reference: _Reference, leaves_rows: bool) -> str:
    """Where the first wrong element of C is, what it is and what it should be, and how many there are; or ""."""
    import torch

    exact = reference.low is reference.high
    # Not by what is less or greater: NaN is neither.
    right = actual == reference.low if exact else (actual >= reference.low) & (actual <= reference.high)
    if leaves_rows:
        right |= actual.isnan() & reference.low.isnan()
    count = actual.numel() - int(torch.count_nonzero(right).item())
    if not count:
        return ""
    place = tuple(int(index) for index in torch.unravel_index(torch.tensor(first_true(~right)), actual.shape))
    found, low, high = (x[place].item() for x in (actual, reference.low, reference.high))
    wanted = f"expected {low:.7g}" + ("" if exact else f" to {high:.7g}")
    return f"C[{', '.join(map(str, place))}] is {found:.7g}, {wanted}; {count:,} of {actual.numel():,} are wrong"
