"""Guard bands: tensors inside larger buffers that are filled with a guard pattern.

The pattern is NaN, or an extreme value for types without NaN. A kernel that reads outside a tensor computes a visibly
wrong result; a kernel that writes there changes the pattern.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from genkern.gemm.dtypes import dtype_of
from genkern.gemm.operand import Operand
from genkern.gemm.problem import INT32

_LEAST_BYTES = 2**16
_MOST_BYTES = 2**22
# Alignment of every buffer that PyTorch allocates, in bytes.
_BUFFER_ALIGNMENT = 512
# A slice starts this number of operand alignments after the start of an aligned region, and its rows are longer by this
# number of steps. The number is odd, so that no larger alignment holds by chance.
_SHIFT = 3
# A matrix keeps its row length if longer rows would need more padding than this and than an eighth of the matrix: one
# with few columns and very many rows.
_MOST_PADDING_BYTES = 2**28
# A kernel that was compiled for a leading dimension that is a multiple of this number of elements may assume that
# every later one is a multiple too.
_PITCH_STEP = 16


@dataclass(frozen=True)
class Guarded:
    """A `tensor` of an operand's logical shape inside a guarded buffer.

    tensor: the tensor
    bits: the buffer as integers of the element's size
    pattern: value of `bits` outside the tensor
    start: element at which the stored matrix starts
    rows: stored rows
    columns: stored columns
    pitch: elements from one stored row to the next
    """

    tensor: Any
    bits: Any
    pattern: int
    start: int
    rows: int
    columns: int
    pitch: int

    def first_outside(self) -> tuple[int, int] | None:
        """Return stored row and column of the first overwritten element outside the tensor, or None.

        The row may be negative.
        """
        first, last = self.start, self.start + self.rows * self.pitch
        body = self.bits[first:last].view(self.rows, self.pitch)
        for place, part in ((0, self.bits[:first]), (first, body[:, self.columns :]), (last, self.bits[last:])):
            changed = part != self.pattern
            if part.numel() and bool(changed.any()):
                index = first_true(changed)
                if part.dim() == 2:
                    row, column = divmod(index, self.pitch - self.columns)
                    return row, column + self.columns
                return divmod(place + index - self.start, self.pitch)
        return None


def first_true(mask: Any) -> int:
    """Return the flat index of the first true element. Requires that there is one."""
    import torch

    # nonzero takes fewer than 2^31 elements. For larger masks, argmax returns some true element, not always the first.
    flat = mask.reshape(-1)
    return int(torch.nonzero(flat)[0].item()) if flat.numel() < INT32 else int(flat.byte().argmax().item())


def guarded(operand: Operand, dtype: Any, device: Any, *, sliced: bool) -> Guarded:
    """Return an uninitialised tensor of PyTorch's `dtype` for `operand` in a buffer filled with the guard pattern.

    `sliced` makes a matrix a slice of a larger one: its rows are longer and its address has no more than the alignment
    that the operand requires. Vectors, scales and matrices of one column stay contiguous.
    Rows also keep their length if the padding would take too much memory or would take the matrix past 2^31 elements.
    """
    *outer, columns = operand.storage_shape
    rows = math.prod(outer)
    item = dtype.itemsize
    step = math.lcm(_PITCH_STEP, operand.alignment // math.gcd(operand.alignment, item))
    pitch, shift = columns, 0
    if sliced and operand.role in ("activation", "weight", "output") and outer:
        shift = _SHIFT * operand.alignment // item
        longer = columns + _SHIFT * step
        padding = rows * _SHIFT * step * item <= max(rows * columns * item // 8, _MOST_PADDING_BYTES)
        if columns > 1 and padding and (rows * longer < INT32 or rows * columns >= INT32):
            pitch = longer
    made = _in_buffer(rows, columns, pitch, shift, dtype, device)
    tensor = made.tensor.view(operand.storage_shape)
    return replace(made, tensor=tensor if operand.row_major else tensor.transpose(-1, -2))


def guarded_vector(elements: int, dtype: Any, device: Any) -> Guarded:
    """Return an uninitialised vector in a guarded buffer, for a kernel's workspace or counters."""
    made = _in_buffer(1, elements, elements, 0, dtype, device)
    return replace(made, tensor=made.tensor.view(-1))


def _in_buffer(rows: int, columns: int, pitch: int, shift: int, dtype: Any, device: Any) -> Guarded:
    import torch

    item = dtype.itemsize
    around = min(max(rows * pitch * item, _LEAST_BYTES), _MOST_BYTES)
    around = -(-around // _BUFFER_ALIGNMENT) * _BUFFER_ALIGNMENT // item
    start = around + shift
    as_integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[item]
    pattern = _pattern(dtype)
    bits = torch.full((start + rows * pitch + around,), pattern, dtype=as_integer, device=device)
    tensor = torch.as_strided(bits.view(dtype), (rows, columns), (pitch, 1), start)
    return Guarded(tensor, bits, pattern, start, rows, columns, pitch)


def _pattern(dtype: Any) -> int:
    """Return the guard's bits for elements of a type, as a signed integer."""
    row = dtype_of(dtype)
    return row.guard - (1 << row.bits) if row.guard >= 1 << (row.bits - 1) else row.guard
