"""Tests of profiling/clocks.py."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.profiling import clocks
from genkern.profiling.clocks import AmdSmiClock, NvmlClock, ThrottleGuard, open_clock, throttled_rounds, usual_mhz


class FakeNvml:
    """libnvidia-ml with one device, GPU-00-11."""

    def __init__(self, mhz: int = 1980, status: int = 0) -> None:
        self.mhz = mhz
        self.status = status

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: object) -> int:
        if uuid != b"GPU-00-11":
            return 6
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = 0xBEEF  # type: ignore[arg-type]
        return 0

    def nvmlDeviceGetClockInfo(self, device: ctypes.c_void_p, kind: int, value: object) -> int:
        assert (device.value, kind) == (0xBEEF, 1)
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = self.mhz  # type: ignore[arg-type]
        return self.status

    def nvmlDeviceGetPowerUsage(self, device: ctypes.c_void_p, value: object) -> int:
        assert device.value == 0xBEEF
        ctypes.cast(value, ctypes.POINTER(ctypes.c_uint))[0] = 688_250  # type: ignore[arg-type]
        return self.status


class ListClock:
    """Reads one value after another, then the last one for ever."""

    def __init__(self, *readings: float | None) -> None:
        self._readings = list(readings)

    def mhz(self) -> float | None:
        return self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]


@pytest.mark.parametrize("uuid", ["00-11", "GPU-00-11"])
def test_nvml_reads_the_device_with_this_uuid(uuid: str) -> None:
    """PyTorch leaves the prefix out, NVML wants it."""
    assert NvmlClock(uuid, FakeNvml(1755)).mhz() == 1755


def test_nvml_that_does_not_answer() -> None:
    """An unknown device or a library without the function is an OSError; a reading that fails is None."""
    with pytest.raises(OSError, match=r"nvmlDeviceGetHandleByUUID .* 6"):
        NvmlClock("other", FakeNvml())
    with pytest.raises(OSError, match="nvmlInit_v2"):
        NvmlClock("00-11", object())
    assert NvmlClock("00-11", FakeNvml(status=3)).mhz() is None
    assert NvmlClock("00-11", FakeNvml(status=3)).watts() is None


def test_power_is_in_watts() -> None:
    """NVML says milliwatts; without a clock, and on AMD, nobody says."""
    assert ThrottleGuard(NvmlClock("00-11", FakeNvml())).watts() == 688.25
    assert ThrottleGuard(None).watts() is None
    assert ThrottleGuard(AmdSmiClock()).watts() is None


def test_a_missing_library_is_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML there is no clock and nothing is raised."""
    monkeypatch.setattr(clocks, "_NVML", "libno-such-library.so.1")
    assert open_clock("00-11") is None


def _raise(error: Exception) -> int:
    raise error


@pytest.mark.parametrize(
    ("clock_rate", "mhz"),
    [
        (lambda: 2100, 2100.0),
        (lambda: 0, None),
        (lambda: "N/A", None),
        (lambda: _raise(ModuleNotFoundError("amdsmi does not seem to be installed")), None),
        (lambda: _raise(RuntimeError("Error code: 43 | AMDSMI_STATUS_UNEXPECTED_DATA")), None),
    ],
)
def test_amdsmi_is_read_through_pytorch(
    clock_rate: Callable[[], object], mhz: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PyTorch says is the reading; a package that is not there, an error and 0 are none."""
    torch = SimpleNamespace(cuda=SimpleNamespace(clock_rate=clock_rate))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert AmdSmiClock().mhz() == mhz


def test_rounds_next_to_a_low_reading_are_throttled() -> None:
    """Reading i is before round i and after the one before it; usual is the median of all readings."""
    readings = dict(enumerate([2100, 1500, 1490, 1480, 900, 1500, 1500, 1120, 1500, 1500, 1500]))
    assert usual_mhz(readings) == 1500
    assert throttled_rounds(readings) == {3, 4, 6, 7}
    assert throttled_rounds({**readings, 7: 1130}) == {3, 4}
    del readings[4]
    assert throttled_rounds(readings) == {6, 7}


@given(st.dictionaries(st.integers(0, 60), st.floats(1, 3000)))
def test_half_of_the_rounds_are_never_throttled(readings: dict[int, float]) -> None:
    """Then the low clock is what there is; most of the rounds stay, whatever the readings are."""
    throttled = throttled_rounds(readings)
    assert 2 * len(throttled) < max(1, max(readings, default=0))
    assert all(min(readings.get(i, 3000), readings.get(i + 1, 3000)) < 0.75 * 3000 for i in throttled)


def test_a_clock_that_is_low_half_of_the_time_is_what_there_is() -> None:
    """Up and down from round to round, every round is next to a low reading; no readings say nothing."""
    assert throttled_rounds(dict(enumerate([2000, 1000] * 5 + [2000]))) == frozenset()
    assert throttled_rounds({}) == frozenset()
    assert usual_mhz({}) is None


def test_a_sample_below_three_quarters_of_the_usual_clock_is_throttled() -> None:
    """Usual is the median of what was read; the reading before counts as much as the one after."""
    guard = ThrottleGuard(ListClock(1980, 2000, 1950, 1400, 1400, 1400, 1400, 1486))
    readings = [guard.read() for _ in range(8)]
    assert guard.usual_mhz == (1950 + 1980) / 2  # throttled readings do not become usual by being many
    assert guard.throttled(1980, 1400)
    assert guard.throttled(1400, 1980)
    assert not guard.throttled(1980, 1486)
    assert readings == [1980, 2000, 1950, 1400, 1400, 1400, 1400, 1486]


def test_without_a_clock_nothing_is_throttled() -> None:
    """No clock, a clock that fails, and one that says 0 take no samples away."""
    for clock in (None, ListClock(None), ListClock(0)):
        guard = ThrottleGuard(clock)
        assert guard.read() is None
        assert not guard.throttled(None, guard.read())


def test_a_new_usual_clock_can_be_accepted() -> None:
    """After that the old readings no longer count."""
    guard = ThrottleGuard(ListClock(2000, 2000, 1000))
    for _ in range(3):
        guard.read()
    assert guard.throttled(1000)
    guard.accept()
    guard.read()
    assert not guard.throttled(1000)


def test_the_librarys_own_errors_are_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """They derive from Exception alone; what is none of the library's, a misspelt name say, comes out."""

    class AmdSmiException(Exception):
        pass

    raised: list[Exception] = [AmdSmiException("driver not loaded"), NameError("clock_rat")]

    def clock_rate() -> float:
        raise raised.pop(0)

    monkeypatch.setitem(sys.modules, "amdsmi", SimpleNamespace(AmdSmiException=AmdSmiException))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(clock_rate=clock_rate)))
    assert AmdSmiClock().mhz() is None
    with pytest.raises(NameError):
        AmdSmiClock().mhz()
