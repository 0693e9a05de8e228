"""Reads of kernels under Triton's interpreter, each held to the operands' memory.

A GPU shows a read beyond an operand only if it changes a result or meets memory that is not mapped. The interpreter
loads through one function, which gets every address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Memory:
    """Where an operand lies: its buffer from `first` on up to `last`, and in it its elements from `start` up to `end`;
    rows are `pitch` bytes apart.
    """

    name: str
    first: int
    last: int
    start: int
    end: int
    pitch: int
    item: int

    @classmethod
    def of(cls, name: str, tensor: Any) -> _Memory:
        storage, item = tensor.untyped_storage(), tensor.element_size()
        start = tensor.data_ptr()
        span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        pitch = max((stride for stride in tensor.stride()[-2:] if stride > 1), default=span)
        first = storage.data_ptr()
        return cls(name, first, first + storage.nbytes(), start, start + span * item, pitch * item, item)

    def place(self, address: int) -> str:
        row, rest = divmod(address - self.start, self.pitch)
        name = self.name.upper() if len(self.name) == 1 else self.name
        return f"reads outside {name} at row {row}, column {rest // self.item}"


class Reads:
    """Reads of launches that are made within `watched`: `fault` says where the first one was outside an operand, in its
    buffer's guard bands, or is "".
    """

    def __init__(self) -> None:
        self.fault = ""

    @contextmanager
    def watched(self, operands: Mapping[str, Any]) -> Iterator[None]:
        """Look at the reads of this process's interpreter meanwhile; of none, where nothing is interpreted."""
        self.fault = ""
        interpreter = _interpreter_of(operands)
        if interpreter is None:
            yield
            return
        memories = [_Memory.of(name, tensor) for name, tensor in operands.items() if tensor.numel()]
        before = interpreter._interpreter
        interpreter._interpreter = _Watching(before, lambda *read: self._look(memories, *read))
        try:
            yield
        finally:
            interpreter._interpreter = before

    def _look(self, memories: list[_Memory], addresses: Any, mask: Any, item: int) -> None:
        import numpy as np

        if self.fault:
            return
        # Addresses and masks of scalars may be no arrays.
        read = np.asarray(addresses)[np.asarray(mask).astype(bool)]
        if not read.size:
            return
        least, most = int(read.min()), int(read.max())
        for memory in memories:
            if memory.start <= least and most + item <= memory.end:
                return
        for memory in memories:
            within = (read >= memory.first) & (read < memory.last)
            outside = read[within & ((read < memory.start) | (read + item > memory.end))]
            if outside.size:
                self.fault = memory.place(int(outside.flat[0]))
                return


class _Watching:
    """Triton's functions of memory, with a look at each load."""

    def __init__(self, functions: Any, look: Any) -> None:
        self._functions, self._look = functions, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        import numpy as np

        self._look(addresses, mask, np.dtype(dtype).itemsize)
        return self._functions.load(addresses, mask, other, dtype)


def _interpreter_of(operands: Mapping[str, Any]) -> Any:
    """Triton's interpreter if it runs kernels on these operands; None otherwise, or if it loads in another way."""
    import triton

    if not triton.knobs.runtime.interpret or any(tensor.device.type != "cpu" for tensor in operands.values()):
        return None
    from triton.runtime import interpreter

    return interpreter if hasattr(getattr(interpreter, "_interpreter", None), "load") else None
