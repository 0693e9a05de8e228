"""Checking: whether a kernel computes its GEMM, and touches nothing else.

    checking = Checking(problem, get_op(problem.op), "sm_90", module.reference, module.make_operands(device))
    verdict = checking.check(Subject(launch, buffers))

`launch(operands)` runs one call on tensors that are placed as told, on the current stream; how it does so is its own
business: the farm's binaries, a generated module's `matmul`, a library. Each round (`inputs.Round`) makes its own
inputs, lays them between guard bands (`guard`), fills C and workspaces with what gives no right result, launches, and
compares: exact rounds to the bit, signs of zeros aside; the random one, and activations whose last bits are open, by
`bound`. All that is done by bands of rows of C, so that what it takes besides operands stays below C's own
size (`_most_bytes`). References are kept as far as they fit in that, so that one `Checking` serves all candidates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.refusal import is_out_of_memory
from genkern.ops.accumulate import PROMOTED_K, is_full
from genkern.ops.op import Op, groups_of, has_exponents
from genkern.profiling.checking.accuracy import elements_outside, worst_row_error
from genkern.profiling.checking.alphabet import FLOAT8_BITS, choose_alphabet
from genkern.profiling.checking.bands import Band, bands_of, cut, period_of, repeat_rows
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
from genkern.profiling.checking.together import fault_together
from genkern.profiling.checking.wide_sums import shows_wide_sums
from genkern.timing.session import TOLERANCE

# A second call finds the workspace as the first left it.
_CALLS = 2
# Beside its operands a check takes as much memory as C has, or this; half of it for references that are kept, a quarter
# for a band, and where that is not there, an eighth of this for a band.
_LEAST_BYTES = 2**31
_SMALLER = 8


@dataclass(frozen=True)
class WorkBuffer:
    """What a kernel keeps between its steps: `zero` where it must be zero before a call and after it.

    Some kernels take one and keep nothing there: it is not `used`.
    """

    name: str
    elements: int
    dtype: Any
    zero: bool = False
    used: bool = True


@dataclass(frozen=True)
class Subject:
    """What is checked. `launch` gets all operands and buffers by name; `refuses` says why not with these, or "".

    A refusal concerns operands that are slices of larger matrices only: that round is then left out. `fault` says what
    else was wrong with the last launch, or "".
    """

    launch: Callable[[dict[str, Any]], object]
    buffers: tuple[WorkBuffer, ...] = ()
    refuses: Callable[[dict[str, Any]], str] = lambda operands: ""
    fault: Callable[[], str] = lambda: ""


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

    @property
    def size_bytes(self) -> int:
        apart = {id(each): each for each in (self.low, self.high, self.expected)}
        return sum(each.numel() * each.element_size() for each in apart.values())

    def first_rows(self, count: int) -> _Reference:
        """The reference of the first `count` rows."""
        if count >= self.low.shape[-2]:
            return self
        low, high, expected = (each[..., :count, :] for each in (self.low, self.high, self.expected))
        return _Reference(low, low if self.high is self.low else high, expected)


class _Errors(NamedTuple):
    """The share of elements off, and the worst row's error."""

    ratio: float
    worst_row: float


@dataclass
class Checking:
    """Checks of one problem on one device.

    `reference(operands)` is the product with all that follows it in float32 [M, N], exact for exact inputs; `like` has
    a tensor for each operand, on the device, whose type the inputs get. `atol` and `rtol` are for `error_ratio` alone.
    `least_bytes` of memory it may take whatever C's size.
    """

    problem: GemmProblem
    op: Op
    arch: str
    reference: Callable[[dict[str, Any]], Any]
    like: Mapping[str, Any]
    seed: int = 0
    atol: float = TOLERANCE
    rtol: float = TOLERANCE
    least_bytes: int = _LEAST_BYTES
    _references: dict[tuple[Round, Band], _Reference] = field(default_factory=dict)
    _kept_bytes: int = 0

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
        self._most_bytes = max(self.operands[2].size_bytes, self.least_bytes)
        self._period = period_of(self.problem, self.op)
        self.bands = self._bands(self._most_bytes // 4)

    def _bands(self, most_bytes: int) -> tuple[Band, ...]:
        """Bands of one period of C's rows, which take at most `most_bytes` each."""
        return bands_of(replace(self.problem, M=self._period), self.op, most_bytes)

    def check(self, subject: Subject) -> Verdict:
        """Run all rounds, or up to the first that finds something. Raises what the launch raises.

        Without memory for it, once more with the least that it can do with: what is raised then says nothing of C.
        """
        try:
            return self._check(subject)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Behind the exception, whose frames hold tensors.
        self._make_do()
        return self._check(subject)

    def _make_do(self) -> None:
        import torch

        self._references.clear()
        self._most_bytes = self._kept_bytes = 0
        self.bands = self._bands(self.least_bytes // 4 // _SMALLER)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _check(self, subject: Subject) -> Verdict:
        started = time.monotonic()
        passed: list[str] = []
        errors = _Errors(1.0, float("inf"))
        message = ""
        for round_ in self.rounds:
            placed = self._inputs(round_, sliced=round_.kind == "layout")
            tensors = {name: place.tensor for name, place in placed.items()}
            buffers = self._buffers(subject)
            tensors |= {name: place.tensor for name, place in buffers.items()}
            if round_.kind == "layout" and subject.refuses(tensors):
                continue
            for _ in range(_CALLS if round_.kind == "exact" else 1):
                tensors["c"].fill_(float("nan"))
                subject.launch(dict(tensors))
                message = self._difference(round_, tensors) or _fault_beside(subject, placed, buffers)
                if message:
                    break
            if not message and round_ is self.rounds[0]:
                message = self._fault_together(subject, placed, buffers)
            if message or round_.kind == "random":
                errors = self._errors(round_, tensors)
            if message:
                message = f"{round_.name}: {message}"
                break
            if round_.kind not in passed:
                passed.append(round_.kind)
            # Before the next: together they are twice as large.
            del placed, tensors, buffers
        return Verdict(not message, message, *errors, tuple(passed), time.monotonic() - started)

    def _fault_together(self, subject: Subject, placed: dict[str, Guarded], buffers: dict[str, Guarded]) -> str:
        """What is wrong with calls that have company, of a kernel that keeps something between its steps.

        The other call has inputs of another exact round, in matrices of their own.
        """
        size = sum(place.bits.numel() * place.bits.element_size() for place in (*placed.values(), *buffers.values()))
        if size > self._most_bytes // 4 or not any(made.used for made in subject.buffers):
            return ""
        rounds = self.rounds[0], next(each for each in self.rounds if each.kind == "layout")
        lanes = (placed, buffers), (self._inputs(rounds[1]), self._buffers(subject))
        tensors = [{name: place.tensor for name, place in (*a.items(), *b.items())} for a, b in lanes]

        def fault(lane: int) -> str:
            return self._difference(rounds[lane], tensors[lane]) or _fault_beside(subject, *lanes[lane])

        return fault_together(subject.launch, tensors, [made.name for made in subject.buffers], fault)

    def _buffers(self, subject: Subject) -> dict[str, Guarded]:
        """What the subject keeps things in, zero where it must be."""
        device = self.like["c"].device
        buffers = {made.name: guarded_vector(made.elements, made.dtype, device) for made in subject.buffers}
        for made in subject.buffers:
            if made.zero:
                buffers[made.name].tensor.zero_()
        return buffers

    def _inputs(self, round_: Round, *, sliced: bool = False) -> dict[str, Guarded]:
        c = self.like["c"]
        placed = {
            operand.name: guarded(operand, self.like[operand.name].dtype, c.device, sliced=sliced)
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
            encodes=self.op.encodes,
            magnitudes=magnitudes,
        )
        if self._period < self.problem.M:
            repeat_rows(self.problem, self.op, tensors, self._period)

    def _encode(self, operand: Operand, numbers: Any, generator: Any) -> Any:
        return self.op.encode(self.problem, operand, numbers, generator)

    def _known(self, round_: Round, tensors: dict[str, Any]) -> Iterator[tuple[Band, _Reference]]:
        """Each band of C and its reference. References are kept as long as there is memory for them.

        A band of the first period stands for the same rows of every further one.
        """
        magnitudes: dict[str, Any] | None = None
        for band in self.bands:
            if (known := self._references.get((round_, band))) is None:
                if round_.kind == "random" and magnitudes is None:
                    magnitudes = self._magnitudes(round_, tensors)
                known = self._reference(round_, tensors, magnitudes, band)
                taken = known.size_bytes
                if self._kept_bytes + taken <= self._most_bytes // 2:
                    self._references[round_, band] = known
                    self._kept_bytes += taken
            yield band, known
            for first in range(band.first + self._period, self.problem.M, self._period):
                last = min(first + band.last - band.first, self.problem.M)
                yield replace(band, first=first, last=last), known.first_rows(last - first)

    def _magnitudes(self, round_: Round, tensors: dict[str, Any]) -> dict[str, Any]:
        """All operands' magnitudes, but A's where bands can make their own."""
        import torch

        a, *others = (operand for operand in self.operands if operand.role != "output")
        encoded = {each.name for each in (a, *others) if each.role == "index" or self.op.encodes(each)}
        made = {name: torch.empty_like(tensors[name]) for name in encoded}
        self._fill(made, round_, magnitudes=True)
        return made | {each.name: _magnitude(tensors[each.name]) for each in others if each.name not in encoded}

    def _reference(
        self, round_: Round, tensors: dict[str, Any], magnitudes: dict[str, Any] | None, band: Band
    ) -> _Reference:
        operands = {operand.name: tensors[operand.name] for operand in self.operands}
        of_band = cut(self.problem, self.op, operands, band)
        expected, dtype_c, activation = self.reference(of_band), tensors["c"].dtype, self.problem.activation
        if expected.shape != of_band["c"].shape:
            found, wanted = tuple(expected.shape), tuple(of_band["c"].shape)
            raise ValueError(f"the reference of {self.op.name} makes {found} of rows of A that make {wanted} (by_rows)")
        factor, beside, gain = self.op.error_beside(self.problem)
        error = activation_error(expected, activation, gain)
        if magnitudes is not None:
            a = self.operands[0].name
            made = {a: _magnitude(of_band[a])} if a not in magnitudes else {}
            magnitude = self.reference(cut(self.problem, self.op, magnitudes, band) | made)
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
            return _Reference(exact, exact, exact)
        return _Reference(*rounded_range(expected, error, dtype_c), expected)

    def _difference(self, round_: Round, tensors: dict[str, Any]) -> str:
        """Where the first wrong element of C is, what it is and what it should be, and how many there are; or ""."""
        first, count = "", 0
        for band, known in self._known(round_, tensors):
            wrong, where = _difference(band, tensors["c"], known, self._leaves_rows)
            first, count = first or where, count + wrong
        return f"{first}; {count:,} of {tensors['c'].numel():,} are wrong" if count else ""

    def _errors(self, round_: Round, tensors: dict[str, Any]) -> _Errors:
        """How far C is off, but for rows that are left as they were."""
        outside, elements, worst_row = 0.0, 0, 0.0
        for band, known in self._known(round_, tensors):
            expected, c = known.expected.float(), band.of(tensors["c"])
            if self._leaves_rows:
                written = ~expected.isnan().any(-1)
                expected, c = expected[written], c[written]
            if expected.numel():
                outside += elements_outside(c, expected, self.atol, self.rtol)
                elements += expected.numel()
                worst_row = max(worst_row, worst_row_error(c, expected))
        return _Errors(min(1.0, outside / elements), worst_row)


def _magnitude(tensor: Any) -> Any:
    """The absolute values, in the tensor's type; 8-bit numbers, which have no function for it, without their sign."""
    import torch

    if not tensor.is_floating_point() or tensor.dtype.itemsize > 1:
        return tensor.abs()
    return (tensor.view(torch.int8) & 127).view(tensor.dtype)


def _fault_beside(subject: Subject, placed: dict[str, Guarded], buffers: dict[str, Guarded]) -> str:
    """What is wrong after a call besides C itself, "" when nothing is."""
    for name, place in {**placed, **buffers}.items():
        if (outside := place.first_outside()) is not None:
            row, column = outside
            where = f"row {row}, column {column}" if place.rows > 1 else f"element {column + row * place.pitch}"
            return f"writes outside {name.upper() if len(name) == 1 else name} at {where}"
    for made in subject.buffers:
        left = buffers[made.name].tensor
        if made.zero and bool(left.any()):
            first = first_true(left != 0)
            return f"leaves {left[first].item()} in {made.name}[{first}], not zero"
    return subject.fault()


def _difference(band: Band, c: Any, reference: _Reference, leaves_rows: bool) -> tuple[int, str]:
    """How many elements of a band of C are wrong; where the first is, what it is and what it should be, or ""."""
    import torch

    actual = band.of(c)
    exact = reference.low is reference.high
    # Not by what is less or greater: NaN is neither.
    right = actual == reference.low if exact else (actual >= reference.low) & (actual <= reference.high)
    if leaves_rows:
        right |= actual.isnan() & reference.low.isnan()
    count = actual.numel() - int(torch.count_nonzero(right).item())
    if not count:
        return 0, ""
    place = tuple(int(index) for index in torch.unravel_index(torch.tensor(first_true(~right)), actual.shape))
    found, low, high = (x[place].item() for x in (actual, reference.low, reference.high))
    wanted = f"expected {low:.7g}" + ("" if exact else f" to {high:.7g}")
    return count, f"C[{', '.join(map(str, band.place(place)))}] is {found:.7g}, {wanted}"
