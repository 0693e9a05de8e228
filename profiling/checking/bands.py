"""Divide C into bands of rows, so that a check needs little memory in addition to its operands.

C of 65536 x 65536 in bf16 has 8 GiB; its float32 reference and the terms of an error bound take several times that. The
operands of a band are slices of the full operands, and the number format's reference computes the band's rows from them
(`Op.by_rows`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.groups import Groups
from genkern.ops.op import Op, groups_of

# Bytes per element of C in a band: the sum in float32 or float64 before and after the epilogue, the sum of magnitudes,
# its error, the two ends of the permitted range, the compared values, and masks.
_BYTES_OF_C = 40
# Bytes per element of A: its value in float32 or float64, its own scales, their product, and intermediates of
# unpacking.
_BYTES_OF_A = 32


@dataclass(frozen=True)
class Band:
    """Rows `first` to `last` (exclusive) of C.

    In a batch, of the products `first_product` to `last_product` (exclusive).
    """

    first: int
    last: int
    first_product: int = 0
    last_product: int = 1

    def of(self, c: Any) -> Any:
        """Return this band's rows of C, or of a tensor with C's shape."""
        if c.dim() == 2:
            return c[self.first : self.last]
        return c[self.first_product : self.last_product, self.first : self.last]

    def place(self, within: tuple[int, ...]) -> tuple[int, ...]:
        """Convert an index within the band to an index within C."""
        *product, row, column = within
        return (*(self.first_product + each for each in product), self.first + row, column)


def row_bytes(problem: GemmProblem, op: Op) -> int:
    """Return an upper estimate of the bytes that one row of C takes in a band."""
    a, b, c, *_ = op.operands(problem)
    groups = groups_of(problem)
    # A row of C that sums the rows of one token needs top_k rows before the sum.
    rows = groups.top_k if groups is not None and groups.summed else 1
    return rows * (_BYTES_OF_C * max(b.shape[-1], c.shape[-1]) + _BYTES_OF_A * a.shape[-1])


def bands_of(problem: GemmProblem, op: Op, most_bytes: int) -> tuple[Band, ...]:
    """Divide all rows of C into bands of at most `most_bytes` each, or into the smallest possible bands.

    Returns one band if the number format cannot compute bands of rows (`Op.by_rows`).
    """
    *batch, rows, _ = op.operands(problem)[2].shape
    products = batch[0] if batch else 1
    if not op.by_rows:
        return (Band(0, rows, 0, products),)
    # Rows that share a scale stay in one band.
    unit = op.shared_scale(problem)[0]
    height = max(1, most_bytes // row_bytes(problem, op) // unit) * unit
    groups = groups_of(problem)
    if groups is not None and groups.capacity:
        return tuple(_of_masked(groups, height))
    if height >= rows:
        together = height // rows
        starts = range(0, products, together)
        return tuple(Band(0, rows, first, min(first + together, products)) for first in starts)
    return tuple(
        Band(first, min(first + height, rows), product, product + 1)
        for product in range(products)
        for first in range(0, rows, height)
    )


def _of_masked(groups: Groups, height: int) -> Iterator[Band]:
    """Yield bands of whole groups, or of parts of one group, for groups that have a capacity."""
    if height >= groups.capacity:
        step = height // groups.capacity * groups.capacity
        for first in range(0, groups.count * groups.capacity, step):
            yield Band(first, min(first + step, groups.count * groups.capacity))
        return
    for start in range(0, groups.count * groups.capacity, groups.capacity):
        for first in range(start, start + groups.capacity, height):
            yield Band(first, min(first + height, start + groups.capacity))


# Below this number of rows, computing the reference of all rows is cheap.
_LEAST_PERIOD = 2039
_MOST_REPEATS = 64


def period_of(problem: GemmProblem, op: Op) -> int:
    """Return the number of rows of C after which the inputs of a check repeat; M if they do not.

    The float32 reference of a tall product costs far more than the product itself: a check of M = 349,525, N =
    6,144 and K = 4,096 took 3.4 s on an H200. If the rows of A repeat, the rows of C repeat too, and the reference
    of one period serves all of them. The period is a number that is no multiple of 2, 3 or 5, times the number of
    rows that share a scale. So a kernel that reads another tile's rows, or whose row offset wraps at a power of
    two, still computes a wrong result. Rows in groups have periods of their own (repeated_groups).
    """
    unit = op.shared_scale(problem)[0]
    a = op.operands(problem)[0]
    if not op.by_rows or groups_of(problem) is not None or len(a.shape) != 2 or a.together > 1:
        return problem.M
    period = period_length(problem.M // unit) * unit
    return period if 4 * period <= problem.M else problem.M


def period_length(rows: int) -> int:
    """Return the period of a number of rows: no multiple of 2, 3 or 5, and at most 64 periods make up all rows."""
    period = max(_LEAST_PERIOD, rows // _MOST_REPEATS)
    while not all(period % prime for prime in (2, 3, 5)):
        period += 1
    return period


def repeat_rows(problem: GemmProblem, op: Op, tensors: dict[str, Any], period: int) -> None:
    """Copy the first `period` rows of A, and of scales that belong to its rows, over all later rows."""
    unit = op.shared_scale(problem)[0]
    for operand in op.operands(problem):
        if operand.name not in tensors or not _has_rows_of_a(operand, problem.M, unit):
            continue
        tensor = tensors[operand.name]
        length = period if operand.role == "activation" else period // unit
        for first in range(length, tensor.shape[-2], length):
            part = tensor[..., first : first + length, :]
            part.copy_(tensor[..., : part.shape[-2], :])


def _has_rows_of_a(operand: Operand, rows: int, unit: int) -> bool:
    """True for A itself and for scales that have one row per `unit` rows of A."""
    if operand.role == "activation":
        return True
    return operand.scales == "a" and len(operand.shape) > 1 and operand.shape[-2] == -(-rows // unit) > 1


def cut(problem: GemmProblem, op: Op, tensors: dict[str, Any], band: Band) -> dict[str, Any]:
    """Return the operands, by name, of the product whose C is the band. `tensors` may lack A and C."""
    operands = op.operands(problem)
    *batch, rows, _ = operands[2].shape
    if band == Band(0, rows, 0, batch[0] if batch else 1):
        return tensors
    if (groups := groups_of(problem)) is not None:
        return _cut_groups(groups, operands, tensors, band)
    per = op.shared_scale(problem)[0]
    found = {}
    for operand in operands:
        if operand.name not in tensors:
            continue
        tensor = tensors[operand.name]
        if op.batched and tensor.dim() == 3:
            tensor = tensor[band.first_product : band.last_product]
        if operand.role in ("activation", "output"):
            tensor = tensor[..., band.first : band.last, :]
        elif _has_rows_of_a(operand, rows, per):
            tensor = tensor[..., band.first // per : -(-band.last // per), :]
        found[operand.name] = tensor
    return found


def _cut_groups(groups: Groups, operands: tuple[Operand, ...], tensors: dict[str, Any], band: Band) -> dict[str, Any]:
    """Return the operands of the groups that have rows in the band, cut to the band."""
    if groups.summed:
        return _cut_tokens(groups, operands, tensors, band)
    said = tensors[groups.index].tolist()
    if groups.capacity:
        first, last = band.first // groups.capacity, -(-band.last // groups.capacity)
        before = band.first - first * groups.capacity
        left = [min(max(count - before, 0), band.last - band.first) for count in said[first:last]]
    else:
        first = next((group for group, end in enumerate(said) if end > band.first), len(said) - 1)
        last = next((group + 1 for group, end in enumerate(said) if end >= band.last), len(said))
        left = [min(end, band.last) - band.first for end in said[first:last]]
    found = dict(tensors)
    found[groups.index] = tensors[groups.index].new_tensor(left)
    for operand in operands:
        if operand.name not in tensors:
            continue
        tensor = tensors[operand.name]
        if len(operand.shape) == 3:
            found[operand.name] = tensor[first:last]
        elif operand.name == "slots" or operand.role == "output" or _is_of_rows(groups, operand, operands):
            found[operand.name] = tensor[band.first : band.last]
    return found


def _is_of_rows(groups: Groups, operand: Operand, operands: tuple[Operand, ...]) -> bool:
    """True if an operand has one row, or one scale, for each row of the groups.

    Operands gathered by `slots` have one per token instead.
    """
    of_a = operand.role == "activation" or operand.scales == "a"
    return of_a and not groups.gathered and operand.shape[0] == operands[0].shape[0] and len(operand.shape) > 1


def _cut_tokens(groups: Groups, operands: tuple[Operand, ...], tensors: dict[str, Any], band: Band) -> dict[str, Any]:
    """Return the operands for summed groups: all rows of the band's tokens, in their original order."""
    import torch

    first_slot, last_slot = band.first * groups.top_k, band.last * groups.top_k
    slots = tensors["slots"]
    rows = ((slots >= first_slot) & (slots < last_slot)).nonzero().flatten()
    ends = tensors[groups.index]
    found = {**tensors, "slots": slots[rows] - first_slot}
    found[groups.index] = torch.searchsorted(rows, ends.to(rows.dtype)).to(ends.dtype)
    for operand in operands:
        if operand.name not in tensors:
            continue
        tensor = tensors[operand.name]
        if operand.role == "output":
            found[operand.name] = tensor[band.first : band.last]
        elif _is_of_rows(groups, operand, operands):
            found[operand.name] = tensor[rows]
        elif operand.role == "scale" and operand.shape == (slots.numel(),) and operand.scales == "":
            found[operand.name] = tensor[first_slot:last_slot]
    return found
