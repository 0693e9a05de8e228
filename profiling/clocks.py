"""Clock and power of the device while a kernel is measured, and which samples the clock makes worthless."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

# NVBench discards a sample taken below this share of the device's default clock; here of its usual one.
THROTTLED_SHARE = 0.75
_READINGS = 1000
_NVML = "libnvidia-ml.so.1"
# No package, no driver, a package that does not fit its library, or an answer that is no number.
_NO_CLOCK = (ImportError, OSError, RuntimeError, AttributeError, LookupError, ValueError)
_NVML_CLOCK_SM = 1  # nvmlClockType_t, nvml.h


class Clock(Protocol):
    """Reads the current clock and power of one device."""

    def mhz(self) -> float | None:
        """The clock in MHz; None when the device does not say."""

    def watts(self) -> float | None:
        """What the device takes; None when it does not say."""


class NvmlClock:
    """The SM clock that NVML reports of the device with this UUID ("GPU-..."); `library` is libnvidia-ml.

    NVML does not heed CUDA_VISIBLE_DEVICES, hence the UUID. Raises OSError when the library or device is missing.
    """

    def __init__(self, uuid: str, library: Any = None) -> None:
        self._nvml = library if library is not None else ctypes.CDLL(_NVML)
        self._device = ctypes.c_void_p()
        name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        self._check("nvmlInit_v2")
        self._check("nvmlDeviceGetHandleByUUID", name.encode(), ctypes.byref(self._device))

    def mhz(self) -> float | None:
        value = ctypes.c_uint()
        try:
            self._check("nvmlDeviceGetClockInfo", self._device, _NVML_CLOCK_SM, ctypes.byref(value))
        except OSError:
            return None
        return float(value.value)

    def watts(self) -> float | None:
        """The mean over the last second, of the board (nvmlDeviceGetPowerUsage, since Ampere)."""
        value = ctypes.c_uint()
        try:
            self._check("nvmlDeviceGetPowerUsage", self._device, ctypes.byref(value))
        except OSError:
            return None
        return value.value / 1000

    def _check(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._nvml, function)(*arguments)
        except AttributeError as error:
            raise OSError(str(error)) from None
        if status:
            raise OSError(f"{function} failed with NVML status {status}")


class AmdSmiClock:
    """The graphics clock of the current device by the amdsmi library, as PyTorch asks it, inside this process.

    The program amd-smi takes so long to start that the device would be idle, and its clock low, when it reads. The
    library needs the Python package amdsmi of ROCm; on some versions it has no answer for an MI300X, or says 0.
    """

    def mhz(self) -> float | None:
        import torch

        try:
            return float(torch.cuda.clock_rate()) or None
        except Exception as error:
            if not isinstance(error, (*_NO_CLOCK, *_amdsmi_errors())):
                raise
            return None

    def watts(self) -> float | None:
        # PyTorch's power_draw says milliwatts, and on AMD gives what amdsmi says, which has been watts and microwatts.
        return None


def _amdsmi_errors() -> tuple[type, ...]:
    """The base of amdsmi's own errors, where it is imported: no builtin of Python's."""
    error = getattr(sys.modules.get("amdsmi"), "AmdSmiException", None)
    return (error,) if isinstance(error, type) else ()


def open_clock(uuid: str) -> Clock | None:
    """NVML's clock of the device; None when there is none."""
    clock: Clock | None = None
    with contextlib.suppress(OSError):
        clock = NvmlClock(uuid)
    return clock if clock is not None and clock.mhz() else None


def usual_mhz(readings_mhz: Mapping[int, float]) -> float | None:
    """The median of the readings of rounds that are over; None without any."""
    return statistics.median(readings_mhz.values()) if readings_mhz else None


def throttled_rounds(readings_mhz: Mapping[int, float]) -> frozenset[int]:
    """Of rounds that are over, those with a reading before or after them below 75 % of the usual clock.

    Reading number i is the one before round i, and after the round before it. When half of the rounds or more would
    be throttled none is: then the low clock is what there is, or the readings say nothing.
    """
    usual = usual_mhz(readings_mhz)
    if usual is None:
        return frozenset()
    low = {number for number, mhz in readings_mhz.items() if mhz < THROTTLED_SHARE * usual}
    rounds = range(max(readings_mhz))
    throttled = frozenset(number for number in rounds if number in low or number + 1 in low)
    return throttled if 2 * len(throttled) < len(rounds) else frozenset()


class ThrottleGuard:
    """Tells samples taken at a throttled clock, below 75 % of the device's usual one.

    That is the median of all readings that were not themselves throttled. Without a clock nothing ever is.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._readings: deque[float] = deque(maxlen=_READINGS)

    @property
    def usual_mhz(self) -> float | None:
        return statistics.median(self._readings) if self._readings else None

    def watts(self) -> float | None:
        """What the device takes now; None where nothing says so."""
        return self._clock.watts() if self._clock is not None else None

    def read(self) -> float | None:
        """Take a reading in MHz."""
        mhz = self._clock.mhz() if self._clock is not None else None
        if mhz and not self.throttled(mhz):
            self._readings.append(mhz)
        return mhz or None

    def throttled(self, *readings: float | None) -> bool:
        """Whether any of these readings is too low."""
        usual = self.usual_mhz
        return usual is not None and any(mhz is not None and mhz < THROTTLED_SHARE * usual for mhz in readings)

    def accept(self) -> None:
        """The clock stays low: what it reads from now on is usual."""
        self._readings.clear()
