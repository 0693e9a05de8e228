"""Launches of one call, prepared for one problem and layout, which can be made with operands at any aligned addresses.

The C extension makes them if it was built, else ctypes does; tests check that both behave alike.
torch._C._StaticCudaLauncher supports neither tensor maps nor clusters; cuda-core and tvm-ffi would be further
dependencies.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char, c_uint64, c_void_p
from threading import get_ident
from typing import Any, Protocol

from genkern.errors import LaunchError
from genkern.runtime.launch.launch_shape import Entries, LaunchShape, PreparedLaunch
from genkern.runtime.launch.parameters import ALIGNMENT, TENSOR_MAP_BYTES, Address, Number, Parameter, TensorMap

# Version of the C extension's arguments; the extension has the same number in FORMS (_native.c).
_FORMS = 2


def _extension() -> Any:
    """Return the C extension; None if it was not built, or was built for other arguments by an earlier genkern."""
    with contextlib.suppress(ImportError):
        found = importlib.import_module("genkern.runtime.launch._native")
        if getattr(found, "FORMS", None) == _FORMS:
            return found
    return None


_native = _extension()

# Tensor maps that are cached per parameter: a caching allocator returns the same few addresses again and again.
_KEPT_MAPS = 64


def forget_workspaces() -> None:
    """Make the C extension's calls in this thread ask for their workspaces again."""
    if _native is not None:
        _native.forget()


class Driver(Protocol):
    """The methods of a driver (cuda_driver, hip_driver) that launchers use."""

    def enter(self, device: int) -> None: ...
    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int: ...
    def relaxed(self) -> contextlib.AbstractContextManager[None]: ...
    def memory(self, size_bytes: int) -> int: ...
    def release(self, address: int) -> None: ...
    def stream_number(self, stream: int) -> int | None: ...
    def current(self) -> int: ...
    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]: ...
    def tensor_map(self, form: TensorMap, address: int) -> bytes: ...
    def capture(self, stream: int) -> int: ...
    def error_text(self, status: int) -> str: ...
    def clears_bit(self, form: TensorMap) -> bool: ...
    @property
    def entries(self) -> Entries: ...


class Launches(Protocol):
    """The launches of a call, in order."""

    def launch(self, stream: int, addresses: tuple[int, ...]) -> bool:
        """Launch with tensors at these addresses; False, with nothing launched, if an operand is not 16-byte aligned.

        Raises LaunchError if the driver refuses a tensor map or a launch.
        """


def make_launches(driver: Driver, launches: Sequence[PreparedLaunch], names: Sequence[str], operands: int) -> Launches:
    """Return the launches of a call.

    names: the tensors in the order of their addresses.
    operands: how many of the first `names` are operands of the call, whose addresses must be aligned.
    """
    slots = {name: place for place, name in enumerate(names)}
    if _native is None:
        return PythonLaunches(driver, launches, slots, operands)
    return native_launches(driver, launches, slots, operands)


def native_launches(
    driver: Driver, launches: Sequence[PreparedLaunch], slots: Mapping[str, int], operands: int
) -> Launches:
    """Return launches that the C extension makes."""

    def fail(status: int) -> None:
        raise LaunchError(f"a launch failed: {driver.error_text(status)}")

    def form(parameter: Parameter) -> tuple[int, ...]:
        if isinstance(parameter, Address):
            return 0, slots[parameter.tensor]
        if isinstance(parameter, Number):
            return 1, parameter.value
        layout, encoding = parameter.layout, parameter.encoding
        sizes = layout.rows, layout.columns, layout.pitch * layout.element_bytes
        clears = driver.clears_bit(parameter)
        encoded = encoding.element_type, *sizes, *encoding.box, encoding.swizzle, clears
        # Passed only if there is one: an extension that was built before offsets existed accepts all other maps.
        offset = (parameter.offset_bytes,) if parameter.offset_bytes else ()
        return 2, slots[parameter.tensor], *encoded, *offset

    def of(launch: PreparedLaunch) -> tuple[object, ...]:
        shape = launch.shape
        asked = shape.threads, shape.shared_bytes, shape.cluster, shape.starts_early
        return shape.function, shape.grid, *asked, tuple(map(form, launch.parameters))

    entries = driver.entries
    made: Launches = _native.Launches(
        entries.launch, entries.encode, entries.plain, fail, operands, len(slots), tuple(map(of, launches))
    )
    return made


class PythonLaunches:
    """Launches through ctypes."""

    def __init__(
        self, driver: Driver, launches: Sequence[PreparedLaunch], slots: Mapping[str, int], operands: int
    ) -> None:
        self._launchers = [_Launcher(driver, launch.shape, launch.parameters, slots) for launch in launches]
        self._operands = operands

    def launch(self, stream: int, addresses: tuple[int, ...]) -> bool:
        together = 0
        for address in addresses[: self._operands]:
            together |= address
        if together % ALIGNMENT:
            return False
        for launcher in self._launchers:
            launcher(stream, addresses)
        return True


class _Launcher:
    """One launch. Each thread has its own argument buffers, so that no lock is needed."""

    def __init__(
        self, driver: Driver, shape: LaunchShape, parameters: Sequence[Parameter], slots: Mapping[str, int]
    ) -> None:
        self._driver = driver
        self._shape = shape
        self._parameters = tuple(parameters)
        self._slots = dict(slots)
        self._maps: dict[tuple[int, int], bytes] = {}
        self._threads: dict[int, _Arguments] = {}

    def __call__(self, stream: int, addresses: Sequence[int]) -> None:
        """Launch. Raises LaunchError if the driver refuses a tensor map or the launch."""
        thread = get_ident()
        if (arguments := self._threads.get(thread)) is None:
            arguments = self._threads[thread] = _Arguments(self._parameters, self._slots)
            arguments.launch = self._driver.launch(self._shape, arguments.pointers)
        for value, slot in arguments.addresses:
            value.value = addresses[slot]
        for number, (room, slot, form) in enumerate(arguments.maps):
            address = addresses[slot] + form.offset_bytes
            if arguments.mapped[number] == address:
                continue
            key = number, address
            if (encoded := self._maps.get(key)) is None:
                if len(self._maps) >= _KEPT_MAPS * len(arguments.maps):
                    self._maps.clear()
                encoded = self._maps[key] = self._driver.tensor_map(form, address)
            ctypes.memmove(room, encoded, TENSOR_MAP_BYTES)
            arguments.mapped[number] = address
        if status := arguments.launch(stream):
            raise LaunchError(f"a launch failed: {self._driver.error_text(status)}")


class _Arguments:
    """The argument buffers of one thread: memory for each parameter, and pointers to it."""

    launch: Callable[[int], int]

    def __init__(self, parameters: Sequence[Parameter], slots: Mapping[str, int]) -> None:
        self.addresses: list[tuple[c_uint64, int]] = []
        self.maps: list[tuple[int, int, TensorMap]] = []
        self._kept: list[object] = []
        places = [self._place(parameter, slots) for parameter in parameters]
        self.pointers = (c_void_p * len(places))(*places)
        # The address for which each tensor map in the buffers was encoded.
        self.mapped = [-1] * len(self.maps)

    def _place(self, parameter: Parameter, slots: Mapping[str, int]) -> int:
        if isinstance(parameter, TensorMap):
            room = (c_char * (TENSOR_MAP_BYTES + 63))()
            self._kept.append(room)
            at = (ctypes.addressof(room) + 63) & ~63
            self.maps.append((at, slots[parameter.tensor], parameter))
            return at
        value = c_uint64(0 if isinstance(parameter, Address) else parameter.value)
        if isinstance(parameter, Address):
            self.addresses.append((value, slots[parameter.tensor]))
        self._kept.append(value)
        return ctypes.addressof(value)
