"""Checking: decides whether a kernel computes its GEMM and writes to no other memory.

    checking = Checking(problem, get_op(problem.op), "sm_90", module.reference, module.make_operands(device))
    verdict = checking.check(Subject(launch, buffers))

`launch(operands)` makes one call on the given tensors and the current stream. How it does so does not matter to the
check: it may launch compiled binaries, a generated module's `matmul`, or a library. Each round (`inputs.Round`)
generates its inputs, places them between guard bands (`guard`), fills C with NaN, launches, and compares. Exact rounds
are compared to the bit, except for the sign of zeros. The random round, and activations whose last bits are not
determined, are compared by the bound in `bound`.

The check goes through C in bands of rows, so that its memory beside the operands stays below the size of C, or below 2
GiB if C is smaller (`_most_bytes`). References are kept as long as they fit in that memory, so one `Checking` serves
all candidates of a problem.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from genkern.gemm.gpus import capabilities_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.kernels.refusal import is_out_of_memory
from genkern.ops.accumulate import PROMOTED_K, is_full
from genkern.ops.op import Op, groups_of, has_exponents
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
from genkern.profiling.checking.concurrent_calls import fault_together
from genkern.profiling.checking.guard import Guarded, first_true, guarded, guarded_vector
from genkern.profiling.checking.inputs import FEW_PRODUCTS, Round, fill, rounds_of
from genkern.profiling.checking.repeated_groups import RepeatedGroups
from genkern.profiling.checking.wide_sums import shows_wide_sums
from genkern.timing.session import TOLERANCE


def error_ratio(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """Return the share of elements of [M, N] with |actual - expected| > atol + rtol |expected|, as AITER computes it.

    Returns 1.0 if any element is NaN or infinite.
    """
    return min(1.0, elements_outside(actual, expected, atol, rtol) / int(expected.numel()))


def elements_outside(actual: Any, expected: Any, atol: float = TOLERANCE, rtol: float = TOLERANCE) -> float:
    """Return the number of elements with |actual - expected| > atol + rtol |expected|.

    Returns infinity if any element is NaN or infinite.
    """
    import torch

    actual = actual.float()
    if not bool(torch.isfinite(actual).all()):
        return math.inf
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol)
    return int((~close).sum().item())


def worst_row_error(actual: Any, expected: Any) -> float:
    """Return the largest ||actual_i - expected_i|| / ||expected_i|| over the rows i of [M, N].

    Returns infinity for NaN or infinity.

    The denominator is at least the norm of a row whose elements are all TOLERANCE. An activation maps negative inputs
    to values close to zero that have few correct digits even in float32: 1 + erf(x) has none left below x = -4.
    """
    difference = (actual.float() - expected).norm(dim=-1)
    size = expected.norm(dim=-1).clamp(min=TOLERANCE * expected.shape[-1] ** 0.5)
    worst = float((difference / size).max().item())
    return worst if worst == worst else float("inf")


# The second call finds the workspace as the first call left it.
_CALLS = 2
# Memory of a check beside its operands: as much as C has, or this many bytes if that is more. Half of it holds kept
# references, a quarter a band.
_LEAST_BYTES = 2**31
# If memory runs out, a band takes at most a quarter of `least_bytes`, divided by this number.
_SMALLER = 8


@dataclass(frozen=True)
class WorkBuffer:
    """Workspace or counters of a kernel.

    name: name of the argument
    elements: number of elements
    dtype: PyTorch's type
    zero: must be zero before and after a call
    used: False if the kernel takes the argument but does not use it
    """

    name: str
    elements: int
    dtype: Any
    zero: bool = False
    used: bool = True


@dataclass(frozen=True)
class Subject:
    """The kernel that is checked.

    launch: makes a call, given all operands and buffers by name
    buffers: workspace and counters that the kernel needs
    refuses: returns why the kernel cannot run with these operands, or ""; asked only about slices of larger matrices,
        and a refusal leaves that round out
    fault: returns any other fault of the last launch, or ""
    """

    launch: Callable[[dict[str, Any]], object]
    buffers: tuple[WorkBuffer, ...] = ()
    refuses: Callable[[dict[str, Any]], str] = lambda operands: ""
    fault: Callable[[], str] = lambda: ""


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    passed: True if no fault was found
    message: the first fault, or ""
    error_ratio: AITER's error ratio in the last round that ran, which is the random one if all passed
    worst_row_error: the largest relative error of a row in that round
    rounds: kinds of the rounds that passed
    seconds: duration of the check
    """

    passed: bool
    message: str
    error_ratio: float
    worst_row_error: float
    rounds: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class _Reference:
    """The permitted results of a round.

    low, high: the smallest and the largest permitted value, in C's type; the same tensor if the result must be exact
    expected: the float32 reference; the same tensor as `low` if the result must be exact
    """

    low: Any
    high: Any
    expected: Any

    @property
    def size_bytes(self) -> int:
        apart = {id(each): each for each in (self.low, self.high, self.expected)}
        return sum(each.numel() * each.element_size() for each in apart.values())

    @classmethod
    def of_all(cls, parts: Sequence[_Reference]) -> _Reference:
        """Return the reference of all rows from those of their bands, in order."""
        if len(parts) == 1:
            return parts[0]
        import torch

        return parts[0]._by_name(lambda name: torch.cat([getattr(part, name) for part in parts]))

    def rows(self, index: Any) -> _Reference:
        """Return the reference of the rows with these numbers."""
        return self._by_name(lambda name: getattr(self, name)[index])

    def first_rows(self, count: int) -> _Reference:
        """Return the reference of the first `count` rows."""
        if count >= self.low.shape[-2]:
            return self
        return self._by_name(lambda name: getattr(self, name)[..., :count, :])

    def _by_name(self, made: Callable[[str], Any]) -> _Reference:
        """Return a reference of the tensors made("low"), made("high") and made("expected").

        Tensors that are the same one here are the same one there.
        """
        low = made("low")
        high = low if self.high is self.low else made("high")
        return _Reference(low, high, low if self.expected is self.low else made("expected"))


class _Errors(NamedTuple):
    """The share of elements outside the tolerances, and the largest relative error of a row."""

    ratio: float
    worst_row: float


@dataclass
class Checking:
    """Checks of one problem on one device.

    problem: the GEMM
    op: its number format
    arch: architecture whose accumulator precision sets the error bound
    reference: computes the product with its epilogue from operands, float32 [M, N], exact for exact inputs
    like: a tensor on the device for each operand; the inputs get their types
    seed: seed of the inputs
    atol, rtol: tolerances of `error_ratio` alone
    least_bytes: memory that the check may take even if C is smaller
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
        # The type that tensor cores multiply, which decides how many bits sums keep. fp8 with exponents is converted to
        # bf16 first.
        self._multiplied = "bf16" if has_exponents(self.problem) else self.problem.dtype_a
        self._few = not self._full and keeps_few_bits(self._multiplied, self.arch)
        groups = groups_of(self.problem)
        # Rows beyond a group's count are NaN in the reference, and a kernel must leave them as they were.
        self._leaves_rows = groups is not None and groups.capacity > 0
        self._most_bytes = max(self.operands[2].size_bytes, self.least_bytes)
        self._period = period_of(self.problem, self.op)
        self._repeats = RepeatedGroups.of(self.problem, self.op, self.like["c"].device)
        self._of_period = self._short()
        self.bands = self._bands(self._most_bytes // 4)

    def _short(self) -> Checking | None:
        """Return the check of one period of tokens; None if tokens do not repeat."""
        if self._repeats is None:
            return None
        return replace(self, problem=self._repeats.short, _references={}, _kept_bytes=0)

    def _bands(self, most_bytes: int) -> tuple[Band, ...]:
        """Return the bands of one period of C's rows, of at most `most_bytes` each."""
        return bands_of(replace(self.problem, M=self._period), self.op, most_bytes)

    def check(self, subject: Subject) -> Verdict:
        """Run all rounds, or stop at the first fault. Raises what the launch raises.

        If memory runs out, runs once more with smaller bands and without kept references. An out-of-memory error of
        that second run does not say that C is wrong.
        """
        try:
            return self._check(subject)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the except block, because the exception's frames keep tensors alive.
        self._make_do()
        return self._check(subject)

    def _make_do(self) -> None:
        import torch

        self._references.clear()
        if self._of_period is not None:
            self._of_period._make_do()
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
            # Free this round's tensors before the next round allocates its own.
            del placed, tensors, buffers
        return Verdict(not message, message, *errors, tuple(passed), time.monotonic() - started)

    def _fault_together(self, subject: Subject, placed: dict[str, Guarded], buffers: dict[str, Guarded]) -> str:
        """Return the fault of two concurrent calls of a kernel that uses a workspace or counters, or "".

        The second call has the inputs of the layout round, in tensors of its own. Returns "" without a test if the
        operands and buffers of the second call would need more than a quarter of the memory of the check.
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
        """Allocate the subject's workspace and counters; zero them if they must be zero."""
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
        index = () if self._repeats is None else tuple(each.name for each in self.operands if each.role == "index")
        fill(
            *({name: tensor for name, tensor in tensors.items() if name not in index}, self.operands),
            *(self.alphabet, round_),
            few=few,
            seed=seed,
            encode=self._encode,
            encodes=self.op.encodes,
            magnitudes=magnitudes,
        )
        if self._repeats is not None:
            self._repeats.write(tensors)
        elif self._period < self.problem.M:
            repeat_rows(self.problem, self.op, tensors, self._period)

    def _encode(self, operand: Operand, numbers: Any, generator: Any) -> Any:
        return self.op.encode(self.problem, operand, numbers, generator)

    def _known(self, round_: Round, tensors: dict[str, Any]) -> Iterator[tuple[Band, _Reference]]:
        """Yield each band of C with its reference. References are kept as long as memory permits.

        The reference of a band of the first period serves the same rows of all later periods.
        """
        if self._repeats is not None:
            yield from self._known_of_groups(self._repeats, round_, tensors)
            return
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

    def _known_of_groups(
        self, repeats: RepeatedGroups, round_: Round, tensors: dict[str, Any]
    ) -> Iterator[tuple[Band, _Reference]]:
        """Yield each band of C with its reference, whose rows are taken from the reference of one period."""
        assert self._of_period is not None
        parts = [known for _, known in self._of_period._known(round_, repeats.one_period(tensors))]
        whole = _Reference.of_all(parts)
        for band in self.bands:
            yield band, whole.rows(repeats.of_c[band.first : band.last])

    def _magnitudes(self, round_: Round, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the magnitudes of all operands, except A if a band can compute its own."""
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
            raise ValueError(
                f"by_rows: {self.op.name}'s reference returned C of shape {found} for rows of shape {wanted}"
            )
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
                # The error of sums of at most PROMOTED_K products, then that of adding these sums in float32.
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
        """Return a description of the first wrong element of C with the number of wrong elements, or ""."""
        first, count = "", 0
        for band, known in self._known(round_, tensors):
            wrong, where = _difference(band, tensors["c"], known, self._leaves_rows)
            first, count = first or where, count + wrong
        return f"{first}; {count:,} of {tensors['c'].numel():,} are wrong" if count else ""

    def _errors(self, round_: Round, tensors: dict[str, Any]) -> _Errors:
        """Return the errors of C, without rows that the kernel must leave as they were."""
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
    """Return the absolute values in the tensor's type.

    PyTorch has no abs for 8-bit floats, so their sign bit is cleared.
    """
    import torch

    if not tensor.is_floating_point() or tensor.dtype.itemsize > 1:
        return tensor.abs()
    return (tensor.view(torch.int8) & 127).view(tensor.dtype)


def _fault_beside(subject: Subject, placed: dict[str, Guarded], buffers: dict[str, Guarded]) -> str:
    """Return the first fault of a call other than wrong elements of C, or ""."""
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
    """Return the number of wrong elements of a band of C, and a description of the first one, or ""."""
    import torch

    actual = band.of(c)
    exact = reference.low is reference.high
    # Not by "less" or "greater" comparisons: both are false for NaN.
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
