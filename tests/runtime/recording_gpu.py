"""A GPU that is none: CPU tensors for its memory, and a driver that writes down what it is asked to launch."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from genkern.compile.binary.code_object import read_parameter_bytes
from genkern.errors import LaunchError
from genkern.runtime.bundles.table import Device
from genkern.runtime.launch.cuda_driver import LaunchConfig
from genkern.runtime.launch.launch_shape import Entries, LaunchShape
from genkern.runtime.launch.parameters import TENSOR_MAP_BYTES, TensorMap
from genkern.runtime.launch.workspaces import Workspaces

H200 = Device("sm_90", "NVIDIA H200", 132)


# cuLaunchKernelEx and cuTensorMapEncodeTiled of cuda.h.
LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(LaunchConfig), *[ctypes.c_void_p] * 3)
_SIZES = [ctypes.POINTER(ctypes.c_uint64)] * 2 + [ctypes.POINTER(ctypes.c_uint32)] * 2
ENCODE = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p), *_SIZES, *[ctypes.c_int] * 4
)
# cuCtxGetCurrent, cuStreamGetCaptureInfo_v2 and cuThreadExchangeStreamCaptureMode.
CURRENT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64))
_INFO = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_uint64)]
CAPTURE = ctypes.CFUNCTYPE(ctypes.c_int, *_INFO, *[ctypes.c_void_p] * 3)
EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
RELAXED = 2


@dataclass(frozen=True)
class Launched:
    """One launch as the driver saw it: the kernel, what it asks for, and its parameters as bytes."""

    symbol: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    cluster: int
    starts_early: bool
    stream: int
    parameters: tuple[bytes, ...]


@dataclass(frozen=True)
class Encoded:
    """What a tensor map was made of, in the driver's order: the contiguous dimension first."""

    element_type: int
    address: int
    sizes: tuple[int, int]
    pitch_bytes: int
    box: tuple[int, int]
    swizzle: int


@dataclass
class FakeDriver:
    """Writes down launches; `refuses` are symbols that cannot be loaded, `fails` makes launches fail.

    `context` is the current one, `mode` that of captures, `memories` the memory that was asked for, `released` what was
    given back of it, `numbers` those of streams that may end.
    """

    refuses: tuple[str, ...] = ()
    fails: bool = False
    capturing: int = 0
    context: int = 80
    mode: int = 0
    memories: list[ctypes.Array[ctypes.c_char]] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    numbers: dict[int, int | None] = field(default_factory=dict)
    launched: list[Launched] = field(default_factory=list)
    encoded: list[Encoded] = field(default_factory=list)
    _kernels: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    _entries: tuple[Any, ...] | None = None

    def enter(self, device: int) -> None: ...

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int:
        if symbol in self.refuses:
            raise LaunchError(f"loading {symbol}: refused")
        handle = int(sha256[:15], 16)
        backend = "cuda" if image[18] == 190 else "hip"
        self._kernels[handle] = symbol, read_parameter_bytes(image, backend, symbol)
        return handle

    @property
    def entries(self) -> Entries:
        if self._entries is None:
            own = CURRENT(self._current), CAPTURE(self._capture), EXCHANGE(self._exchange)
            self._entries = LAUNCH(self._launch_kernel), ENCODE(self._encode), *own
        launch, encode, *own = (int(ctypes.cast(entry, ctypes.c_void_p).value or 0) for entry in self._entries)
        return Entries(launch, encode, False, *own)

    def _current(self, context: Any) -> int:
        context[0] = self.context
        return 0

    def _capture(self, stream: int, status: Any, number: Any, *rest: Any) -> int:
        status[0], number[0] = bool(self.capturing), self.capturing
        return 0

    def _exchange(self, mode: Any) -> int:
        self.mode, mode[0] = mode[0], self.mode
        return 0

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        before, self.mode = self.mode, RELAXED
        yield
        self.mode = before

    def memory(self, size_bytes: int) -> int:
        self.memories.append(ctypes.create_string_buffer(size_bytes + 255))
        return -(-ctypes.addressof(self.memories[-1]) // 256) * 256

    def release(self, address: int) -> None:
        self.released.append(address)

    def stream_number(self, stream: int) -> int | None:
        return self.numbers.get(stream, 0)

    def current(self) -> int:
        return self.context

    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]:
        def launch(stream: int) -> int:
            x, y, z = shape.grid
            grid, asked = (x * shape.cluster, y, z), (shape.threads, shape.shared_bytes)
            return self._write_down(
                shape.function, grid, *asked, shape.cluster, shape.starts_early, stream, ctypes.addressof(pointers)
            )

        return launch

    def _launch_kernel(self, config: Any, function: int, pointers: int, extra: int) -> int:
        asked = config.contents
        attributes = {each.id: each.value[0] for each in asked.attributes[: asked.attribute_count]}
        return self._write_down(
            function,
            tuple(asked.grid),
            asked.block[0],
            asked.shared_bytes,
            attributes.get(4, 1),
            6 in attributes,
            asked.stream or 0,
            pointers,
        )

    def _write_down(self, function: int, *asked: Any) -> int:
        if self.fails:
            return 719
        symbol, sizes = self._kernels[function]
        *asked, pointers = asked
        places = (ctypes.c_void_p * len(sizes)).from_address(pointers)
        found = tuple(ctypes.string_at(at, size) for at, size in zip(places, sizes, strict=True))
        self.launched.append(Launched(symbol, *asked, found))
        return 0

    def _encode(self, out: int, element_type: int, rank: int, address: int, *rest: Any) -> int:
        sizes, pitch, box, ones, interleave, swizzle, promotion, fill = rest
        assert (rank, ones[0], ones[1], interleave, promotion, fill) == (2, 1, 1, 0, 2, 0)
        encoded = Encoded(element_type, address, (sizes[0], sizes[1]), pitch[0], (box[0], box[1]), swizzle)
        ctypes.memmove(out, self._map(encoded), TENSOR_MAP_BYTES)
        return 0

    def tensor_map(self, form: TensorMap, address: int) -> bytes:
        layout, encoding = form.layout, form.encoding
        rows, columns = encoding.box
        pitch = layout.pitch * layout.element_bytes
        sizes = layout.columns, layout.rows
        return self._map(Encoded(encoding.element_type, address, sizes, pitch, (columns, rows), encoding.swizzle))

    def _map(self, encoded: Encoded) -> bytes:
        if encoded not in self.encoded:
            self.encoded.append(encoded)
        # What stands in a parameter says which map it is.
        return f"{self.encoded.index(encoded)}".encode().ljust(TENSOR_MAP_BYTES, b"\0")

    def map_in(self, parameter: bytes) -> Encoded:
        """What the map that a launch was passed is of."""
        return self.encoded[int(parameter.rstrip(b"\0"))]

    def clears_bit(self, form: TensorMap) -> bool:
        return False

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
        self.workspaces = Workspaces(self.driver.memory, self.driver.release, self.driver.stream_number)
        self.made: list[Any] = []
        self.temporaries: list[Any] = []

    def stream_of(self, index: int) -> int:
        return 7

    def stream(self) -> int:
        return 7

    @property
    def empty_here(self) -> Any:
        return self.empty

    def temporary(self, size_bytes: int) -> Any:
        self.temporaries.append(torch.empty(size_bytes, dtype=torch.uint8))
        return self.temporaries[-1]

    def is_current(self) -> bool:
        return True

    @contextlib.contextmanager
    def made_current(self) -> Iterator[None]:
        yield

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        out = torch.empty_strided(shape, strides, dtype=dtype)
        self.made.append(out)
        return out
