"""The clock of the compute units while a kernel is measured, and which samples it makes worthless."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import subprocess
from collections import deque
from typing import Any, Protocol

from genkern.profiling.amd_smi import highest_mhz

# NVBench discards a sample taken below this share of the device's default clock; here of its usual one.
THROTTLED_SHARE = 0.75
_READINGS = 1000
_NVML = "libnvidia-ml.so.1"
_NVML_CLOCK_SM = 1  # nvmlClockType_t, nvml.h
_AMD_SMI_TIMEOUT_S = 10.0


class Clock(Protocol):
    """Reads the current clock of one device."""

    def mhz(self) -> float | None:
        """The clock in MHz; None when the device does not say."""


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

    def _check(self, function: str, *arguments: Any) -> None:
        try:
            status = getattr(self._nvml, function)(*arguments)
        except AttributeError as error:
            raise OSError(str(error)) from None
        if status:
            raise OSError(f"{function} failed with NVML status {status}")


class AmdSmiClock:
    """The graphics clock that `amd-smi` reports of the GPU with this number. One reading starts a process."""

    def __init__(self, index: int) -> None:
        self._argv = amd_smi_argv(index)

    def mhz(self) -> float | None:
        try:
            done = subprocess.run(self._argv, capture_output=True, text=True, timeout=_AMD_SMI_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return parse_amd_smi(done.stdout)


def amd_smi_argv(index: int) -> list[str]:
    """The command that prints the clocks of GPU number `index` as JSON."""
    return ["amd-smi", "metric", "--gpu", str(index), "--clock", "--json"]


def parse_amd_smi(text: str) -> float | None:
    """The highest graphics clock (of the XCDs gfx_0, gfx_1, ...) in MHz; None for anything else than such JSON."""
    return highest_mhz(text, "gfx", "clk")


def open_clock(uuid: str, amd_index: int | None = None) -> Clock | None:
    """The clock of the device: NVML's by `uuid`, or amd-smi's when `amd_index` is given; None when there is none."""
    clock: Clock | None = None
    with contextlib.suppress(OSError):
        clock = NvmlClock(uuid) if amd_index is None else AmdSmiClock(amd_index)
    return clock if clock is not None and clock.mhz() else None


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
