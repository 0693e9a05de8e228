"""Launcher: one launch of a kernel, prepared for a size and a way of lying, to be made at any addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char, c_uint64, c_void_p
from threading import get_ident
from typing import Any, Protocol

from genkern.errors import LaunchError
from genkern.runtime.launch.cuda_driver import LaunchShape
from genkern.runtime.launch.parameters import TENSOR_MAP_BYTES, Address, Parameter, TensorMap

# Tensor maps that are kept of one parameter: a caching allocator gives the same few addresses again and again.
_KEPT_MAPS = 64


class Driver(Protocol):
    """What a launcher asks of a driver (cuda_driver, hip_driver)."""

    def function(self, device: int, sha256: str, image: bytes, symbol: str, shared_bytes: int) -> int: ...
    def launch(self, shape: LaunchShape, pointers: Any) -> Callable[[int], int]: ...
    def tensor_map(self, form: TensorMap, address: int) -> bytes: ...
    def capture(self, stream: int) -> int: ...
    def error_text(self, status: int) -> str: ...


class Launcher:
    """One launch; `slots` is the place of each tensor among the addresses of a call.

    Each thread has its own arguments, so that no lock is needed.
    """

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
        """Raises LaunchError where the driver refuses a tensor map or the launch."""
        thread = get_ident()
        if (arguments := self._threads.get(thread)) is None:
            arguments = self._threads[thread] = _Arguments(self._parameters, self._slots)
            arguments.launch = self._driver.launch(self._shape, arguments.pointers)
        for value, slot in arguments.addresses:
            value.value = addresses[slot]
        for number, (room, slot, form) in enumerate(arguments.maps):
            key = number, addresses[slot]
            if (encoded := self._maps.get(key)) is None:
                if len(self._maps) >= _KEPT_MAPS * len(arguments.maps):
                    self._maps.clear()
                encoded = self._maps[key] = self._driver.tensor_map(form, addresses[slot])
            ctypes.memmove(room, encoded, TENSOR_MAP_BYTES)
        if status := arguments.launch(stream):
            raise LaunchError(f"a launch failed: {self._driver.error_text(status)}")


class _Arguments:
    """What one thread hands to the driver: room for each parameter, and pointers to them."""

    launch: Callable[[int], int]

    def __init__(self, parameters: Sequence[Parameter], slots: Mapping[str, int]) -> None:
        self.addresses: list[tuple[c_uint64, int]] = []
        self.maps: list[tuple[int, int, TensorMap]] = []
        self._kept: list[object] = []
        places = [self._place(parameter, slots) for parameter in parameters]
        self.pointers = (c_void_p * len(places))(*places)

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
