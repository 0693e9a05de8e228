"""Read clock and power of the device while kernels are measured, and decide which samples were throttled."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

# NVBench discards a sample taken below this share of the default clock; genkern uses the device's usual clock.
THROTTLED_SHARE = 0.75
_READINGS = 1000
_NVML = "libnvidia-ml.so.1"
# Errors if the package or the driver is missing, the package does not match its library, or the answer is no number.
_NO_CLOCK = (ImportError, OSError, RuntimeError, AttributeError, LookupError, ValueError)
_NVML_CLOCK_SM = 1  # nvmlClockType_t, nvml.h


class Clock(Protocol):
    """Reads the current clock and power of one device."""

    def mhz(self) -> float | None:
        """Return the clock in MHz, or None if the device does not report it."""

    def watts(self) -> float | None:
        """Return the power in watts, or None if the device does not report it."""


class NvmlClock:
    """The SM clock that NVML reports for the device with this UUID ("GPU-..."). `library` is libnvidia-ml.

    NVML ignores CUDA_VISIBLE_DEVICES, hence the UUID. Raises OSError if the library or the device is missing.
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
        """Return the board's mean power over the last second (nvmlDeviceGetPowerUsage, since Ampere)."""
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
    """The graphics clock of the current device, read through PyTorch and the amdsmi library in this process.

    The program amd-smi takes so long to start that the device would be idle, and its clock low, when it reads. The
    library needs ROCm's Python package amdsmi; some versions return no clock, or 0, for an MI300X.
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
        # PyTorch documents power_draw as milliwatts, but on AMD it returns amdsmi's value, which has been watts and
        # microwatts.
        return None


def _amdsmi_errors() -> tuple[type, ...]:
    """Return the base class of amdsmi's exceptions, which is not derived from `_NO_CLOCK`; () if amdsmi is missing."""
    error = getattr(sys.modules.get("amdsmi"), "AmdSmiException", None)
    return (error,) if isinstance(error, type) else ()


def open_clock(uuid: str) -> Clock | None:
    """Return NVML's clock of the device, or None if NVML cannot read it or reports 0 MHz."""
    clock: Clock | None = None
    with contextlib.suppress(OSError):
        clock = NvmlClock(uuid)
    return clock if clock is not None and clock.mhz() else None


def usual_mhz(readings_mhz: Mapping[int, float]) -> float | None:
    """Return the median reading of a finished measurement, or None without readings."""
    return statistics.median(readings_mhz.values()) if readings_mhz else None


def throttled_rounds(readings_mhz: Mapping[int, float]) -> frozenset[int]:
    """Return the finished rounds with a reading before or after them below 75 % of the usual clock.

    Reading i is the one before round i and after round i - 1. If half of the rounds or more would be throttled, returns
    an empty set: then the low clock is the usual one, or the readings are meaningless.
    """
    usual = usual_mhz(readings_mhz)
    if usual is None:
        return frozenset()
    low = {number for number, mhz in readings_mhz.items() if mhz < THROTTLED_SHARE * usual}
    rounds = range(max(readings_mhz))
    throttled = frozenset(number for number in rounds if number in low or number + 1 in low)
    return throttled if 2 * len(throttled) < len(rounds) else frozenset()


class ThrottleGuard:
    """Recognises samples taken at a throttled clock, below 75 % of the device's usual clock.

    The usual clock is the median of the last 1000 readings that were not throttled; `accept` discards them. Without a
    clock no sample is throttled.
    """

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._readings: deque[float] = deque(maxlen=_READINGS)

    @property
    def usual_mhz(self) -> float | None:
        return statistics.median(self._readings) if self._readings else None

    def watts(self) -> float | None:
        """Return the current power in watts, or None if it is not reported."""
        return self._clock.watts() if self._clock is not None else None

    def read(self) -> float | None:
        """Return the current clock in MHz, or None if it is not reported.

        The reading counts for the usual clock unless it is throttled.
        """
        mhz = self._clock.mhz() if self._clock is not None else None
        if mhz and not self.throttled(mhz):
            self._readings.append(mhz)
        return mhz or None

    def throttled(self, *readings: float | None) -> bool:
        """Return True if any of these readings is too low."""
        usual = self.usual_mhz
        return usual is not None and any(mhz is not None and mhz < THROTTLED_SHARE * usual for mhz in readings)

    def accept(self) -> None:
        """Accept a clock that stays low: only later readings determine the usual clock."""
        self._readings.clear()
