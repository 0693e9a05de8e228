"""Operand: one tensor that a GEMM reads or writes, as its format declares it; everything else about it is derived.

A format says `operands(problem)` (see genkern.ops.op); signatures, the making and checking of inputs, bytes moved,
guard bands and what rotates through the cache follow from that list.
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

    `shape` counts logical elements; a matrix that is not `row_major` is stored as its transpose, which is row-major.
    `dtype` is the storage type by genkern's name; `packed` elements share one of it (two for 4-bit types, packed along
    the contiguous dimension). Of `together` rows as they are stored, where that is more than one, pieces of `piece`
    elements take turns, so that these rows are one of the tensor. `alignment` (bytes) is what the address, and the
    pitch of a matrix, must be a multiple of for the farm's binaries. `rotates` says that measuring goes through several
    copies of it, so that a call finds it cold, as a model finds its weights. `scales` names the operand that a scale
    belongs to. `in_step` says that it is read at every step over K, not once at the end: a kernel of partial sums takes
    it, the one that adds them up not.
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
        """Logical elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Storage without padding; the contiguous dimension is rounded up to whole storage elements."""
        return math.prod(self.storage_shape) * DTYPES[self.dtype].size_bytes

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Logical elements in the order of storage: the last dimension is contiguous."""
        return self._as_stored(self.shape)

    @property
    def storage_shape(self) -> tuple[int, ...]:
        """`stored_shape` in elements of `dtype`, of which each may hold several that are packed; rows that are together
        are one.
        """
        *outer, contiguous = self.stored_shape
        if self.together > 1:
            return (*outer[:-1], outer[-1] // self.together, contiguous * self.together)
        return (*outer, -(-contiguous // self.packed))

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Of the tensor that is handed in: `shape` in elements of `dtype`."""
        return self._as_stored(self.storage_shape)

    @property
    def is_plain(self) -> bool:
        """Whether its elements are numbers of its storage type, so that any number makes an input."""
        return self.packed == self.together == 1 and self.role != "index"

    def _as_stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.row_major else (*shape[:-2], shape[-1], shape[-2])


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Elements from one index to the next in each dimension of a tensor that is stored without gaps, row by row."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
