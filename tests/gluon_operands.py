"""What launches of kernels in Gluon are given on tests/gluon_stand_in.py: matrices, and pointers into flat memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from gluon_memory import global_address
from gluon_wgmma import Tensor
from numpy.typing import NDArray


class Pointer:
    """A pointer into flat memory; `others_write` where other programs of the same grid do.

    `writes`, where there are any, says which elements are written, each once at most.
    """

    def __init__(
        self, memory: NDArray[Any], offset: Any = 0, others_write: bool = False, writes: NDArray[Any] | None = None
    ) -> None:
        self.memory, self.offset, self.others_write, self.writes = memory, offset, others_write, writes

    def __add__(self, other: Any) -> Pointer:
        offset = self.offset + (other.values if isinstance(other, Tensor) else other)
        return Pointer(self.memory, offset, self.others_write, self.writes)

    __radd__ = __add__

    def __int__(self) -> int:
        return global_address(self.memory, int(self.offset))

    def to(self, dtype: Any) -> Pointer:
        assert dtype == np.float32, "memory for sums that holds something else"
        return self

    @property
    def place(self) -> Any:
        """The offset, once it is known to be one of this memory."""
        offset = np.asarray(self.offset)
        assert offset.min() >= 0, "an offset before the memory"
        assert offset.max() < len(self.memory), "an offset beyond the memory"
        return self.offset


class Matrix:
    """What `launches` asks of an operand; `writes` says which elements are written, where that may be."""

    def __init__(self, values: NDArray[Any], writes: NDArray[Any] | None = None, read_once: bool = False) -> None:
        self.values, self.writes, self.read_once = values, writes, read_once

    @property
    def T(self) -> Matrix:
        return Matrix(self.values.T, read_once=self.read_once)

    @property
    def mT(self) -> Matrix:
        return Matrix(self.values.mT, read_once=self.read_once)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def dtype(self) -> Any:
        return self.values.dtype

    def view(self, *shape: int) -> Matrix:
        assert self.values.flags.c_contiguous, "matrices that do not lie one below the other"
        return Matrix(self.values.reshape(shape), read_once=self.read_once)

    def stride(self) -> tuple[int, ...]:
        return tuple(bytes_apart // self.values.itemsize for bytes_apart in self.values.strides)

    def __add__(self, offset: Any) -> Pointer:
        assert self.writes is not None, "memory that only the copy engine reads"
        return Pointer(self.values.reshape(-1), writes=self.writes.reshape(-1)) + offset


class Stacked(Pointer):
    """A pointer to matrices, each behind the one before it."""

    def __init__(self, matrices: NDArray[Any]) -> None:
        super().__init__(matrices.reshape(-1))
        self.apart = matrices[0].size

    def stride(self, dimension: int) -> int:
        assert dimension == 0
        return self.apart
