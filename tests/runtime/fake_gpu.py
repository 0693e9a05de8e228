"""A GPU that is none: CPU tensors for its memory, and a driver that writes down what it is asked to launch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from genkern.runtime.launch.cuda_driver import LaunchShape
from genkern.runtime.launch.parameters import TENSOR_MAP_BYTES, TensorMap
from genkern.runtime.launch.scratch import Scratch
from genkern.runtime.table import Device

H200 = Device("sm_90", "NVIDIA H200", 132)


@dataclass(frozen=True)
class Launched:
    """One launch as the driver saw it: the kernel, and its parameters as bytes."""

    symbol: str
    shape: LaunchShape
    stream: int
    parameters: tuple[bytes, ...]


@dataclass
class FakeDriver:
    """Writes down launches; `refuses` are symbols that cannot be loaded, `fails` makes launches fail."""

    refuses: tuple[str, ...] = ()
    fails: bool = False
    capturing: int = 0
    launched: list[Launched] = field(default_factory=list)
    encoded: list[tuple[TensorMap, int]] = field(default_factory=list)
    _symbols: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        from genkern.errors import LaunchError
        from genkern.farm.code_object import read_parameter_bytes

        if symbol in self.refuses:
            raise LaunchError(f"loading {symbol}: refused")
        handle = int(sha256[:15], 16)
        backend = "cuda" if image[18] == 190 else "hip"
        self._symbols[handle] = symbol, read_parameter_bytes(image, backend, symbol)
        return handle

    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]:
        symbol, sizes = self._symbols[shape.function]

        def launch(stream: int) -> int:
            if self.fails:
                return 719
            found = tuple(ctypes.string_at(at, size) for at, size in zip(pointers, sizes, strict=True))
            self.launched.append(Launched(symbol, shape, stream, found))
            return 0

        return launch

    def tensor_map(self, form: TensorMap, address: int) -> bytes:
        self.encoded.append((form, address))
        return f"{address:x}".encode().ljust(TENSOR_MAP_BYTES, b"\0")

    def capture(self, stream: int) -> int:
        return self.capturing

    def error_text(self, status: int) -> str:
        return f"CUDA error {status}"


class FakeGpu:
    """As TorchGpu, on the CPU."""

    def __init__(self, index: int = -1, identity: Device = H200) -> None:
        self.index = index
        self.identity = identity
        self.driver = FakeDriver()
        self.scratch = Scratch(self._make)
        self.made: list[Any] = []

    def stream(self) -> int:
        return 7

    def is_current(self) -> bool:
        return True

    @contextlib.contextmanager
    def made_current(self) -> Iterator[None]:
        yield

    def empty(self, shape: Sequence[int], dtype: Any) -> Any:
        out = torch.empty(shape, dtype=dtype)
        self.made.append(out)
        return out

    def _make(self, size_bytes: int, zero: bool) -> Any:
        return (torch.zeros if zero else torch.empty)(size_bytes, dtype=torch.uint8)
