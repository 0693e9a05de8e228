"""What launches of kernels in Gluon are given on tests/gluon_stand_in.py: matrices, and pointers into flat memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gluon_memory import Descriptor, global_address
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


# Where parameters are in a space of their own, and what is added to that for every other instruction.
_PARAMETERS, _ANYWHERE = 1 << 56, 1 << 57


class Parameters:
    """What a kernel is launched with, as PTX names it: each descriptor is five parameters, of which it is the first."""

    def __init__(self, symbol: str, args: Sequence[Any]) -> None:
        self._symbol, self._args = symbol, args

    def address(self, name: str) -> int:
        """In the space of parameters."""
        symbol, _, number = name.rpartition("_param_")
        assert symbol == self._symbol
        assert int(number) % 5 == 0, "a parameter that is no descriptor"
        return _PARAMETERS + int(number) // 5 * 128

    @staticmethod
    def anywhere(address: int) -> int:
        """The same place for instructions that name no space."""
        assert address & _PARAMETERS, "no parameter's address"
        return address | _ANYWHERE

    def descriptor(self, address: int) -> Descriptor:
        """What lies there; it must be a descriptor."""
        assert address & _ANYWHERE, "a parameter's address where no space is named"
        found = self._args[(address & (_PARAMETERS - 1)) // 128]
        assert isinstance(found, Descriptor), "a parameter that is no descriptor"
        return found
