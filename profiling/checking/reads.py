"""Find reads of a kernel under Triton's interpreter that lie in the guard bands of an operand.

On a GPU, a read beyond an operand is noticed only if it changes a result or hits unmapped memory. The interpreter loads
through one function, which receives every address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Memory:
    """Address range of an operand in bytes.

    first, last: start and end of the buffer that holds it
    start, end: start and end of its elements
    pitch: bytes from one row to the next
    item: bytes per element
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
    """Watches the reads of launches inside `watched`.

    `fault` describes the first read that lies in an operand's buffer before its first or after its last element, or is
    "". Reads between the rows of a slice, and reads outside all buffers, are not found.
    """

    def __init__(self) -> None:
        self.fault = ""

    @contextmanager
    def watched(self, operands: Mapping[str, Any]) -> Iterator[None]:
        """Check the interpreter's reads in this process during the block. Does nothing if kernels are compiled."""
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
        # Addresses and masks of scalar loads may not be arrays.
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
    """Wraps Triton's memory functions and reports each load to `look`."""

    def __init__(self, functions: Any, look: Any) -> None:
        self._functions, self._look = functions, look

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        import numpy as np

        self._look(addresses, mask, np.dtype(dtype).itemsize)
        return self._functions.load(addresses, mask, other, dtype)


def _interpreter_of(operands: Mapping[str, Any]) -> Any:
    """Return Triton's interpreter module if it runs kernels on these operands.

    Returns None if kernels are compiled, or if this Triton's interpreter loads in another way.
    """
    import triton

    if not triton.knobs.runtime.interpret or any(tensor.device.type != "cpu" for tensor in operands.values()):
        return None
    from triton.runtime import interpreter

    return interpreter if hasattr(getattr(interpreter, "_interpreter", None), "load") else None
