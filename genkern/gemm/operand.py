"""Operand: one tensor that a GEMM reads or writes, as its number format declares it.

A format provides `operands(problem)` (see genkern.ops.op). Signatures, inputs and their checks, bytes moved, guard
bands and rotating copies are derived from that list.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from genkern.gemm.dtypes import DTYPES

Role = Literal["activation", "weight", "scale", "index", "bias", "output"]


@dataclass(frozen=True)
class Operand:
    """One tensor of a GEMM.

    name: name of the argument
    role: what the tensor is
    shape: logical shape
    dtype: storage type by genkern's name
    row_major: if False, a matrix is stored as its transpose, which is row-major
    packed: logical elements in one storage element (two for 4-bit types, packed along the contiguous dimension)
    together: if more than one, this number of stored rows is interleaved into one row of the tensor
    piece: number of consecutive elements of each interleaved row
    alignment: bytes; compiled kernels require that the address, and the pitch of a matrix, are multiples of it
    rotates: measurements rotate through several copies of it, so that a call finds it cold, as a model does its weights
    scales: name of the operand that a scale belongs to
    in_step: it is read at every step over K, not once at the end; so a kernel of partial sums takes it, but not the
        kernel that adds them up
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    row_major: bool = True
    packed: int = 1
    together: int = 1
    piece: int = 1
    alignment: int = 16
    rotates: bool = False
    scales: str = ""
    in_step: bool = False

    @property
    def elements(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of storage without padding. The contiguous dimension is rounded up to whole storage elements."""
        return math.prod(self.storage_shape) * DTYPES[self.dtype].size_bytes

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Logical shape in the order of storage: the last dimension is contiguous."""
        return self._as_stored(self.shape)

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """`stored_shape` in elements of `dtype`: packed elements count as one, and interleaved rows form one row."""
        *outer, contiguous = self.stored_shape
        if self.together > 1:
            return (*outer[:-1], outer[-1] // self.together, contiguous * self.together)
        return (*outer, -(-contiguous // self.packed))

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of the tensor that a caller passes: `shape` in elements of `dtype`."""
        return self._as_stored(self.storage_shape)

    @property
    def is_plain(self) -> bool:
        """True if its elements are numbers of its storage type, so that any number is a valid input."""
        return self.packed == self.together == 1 and self.role != "index"

    def _as_stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.row_major else (*shape[:-2], shape[-1], shape[-2])


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a row-major tensor without gaps."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
