"""Guard bands: tensors inside larger buffers whose every other element is a bit pattern that nobody writes or wants.

What is read there is NaN (an outlandish number where the type has none), what is written there is seen.
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
# Of any buffer that PyTorch makes.
_BUFFER_ALIGNMENT = 512
# A slice begins so many alignments after a multiple of a buffer's, and its rows are so much longer: an odd count, so
# that no larger alignment holds by chance.
_SHIFT = 3
# Longer rows are left out where they would be most of a buffer: of a few columns, and very many rows.
_MOST_PADDING_BYTES = 2**28
# Kernels of the farm are promised that a leading dimension is a multiple of so many elements, where it was.
_PITCH_STEP = 16


@dataclass(frozen=True)
class Guarded:
    """`tensor`, of its logical shape, inside `buffer`.

    `bits` is the buffer as integers of the element's size, and `pattern` what they are outside. The stored matrix has
    `rows` of `columns` elements, `pitch` elements apart, from element `start` on.
    """

    tensor: Any
    bits: Any
    pattern: int
    start: int
    rows: int
    columns: int
    pitch: int

    def first_outside(self) -> tuple[int, int] | None:
        """Stored row and column of the first element outside that was written, or None; the row may be negative."""
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
    """Place of the first true element in the order of its elements; there must be one."""
    import torch

    # argmax of equals gives any of them: of falling numbers, the first.
    flat = mask.reshape(-1)
    return int(torch.nonzero(flat)[0].item()) if flat.numel() < INT32 else int(flat.byte().argmax().item())


def guarded(operand: Operand, dtype: Any, device: Any, *, sliced: bool) -> Guarded:
    """An unset tensor for `operand`, of PyTorch's `dtype`, all of whose buffer has the guard's pattern.

    `sliced` makes a matrix a slice of a larger one: rows that are longer, and a beginning that is aligned to no more
    than the operand asks for. Vectors, scales and matrices of one column stay as they are.
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
    """An unset vector in a buffer of its own, for what kernels keep between their steps."""
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
    """The guard's bits for elements of a type, as a signed integer."""
    row = dtype_of(dtype)
    return row.guard - (1 << row.bits) if row.guard >= 1 << (row.bits - 1) else row.guard
