"""Tests of profiling/clocks.py."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.profiling import clocks
from genkern.profiling.clocks import AmdSmiClock, NvmlClock, ThrottleGuard, amd_smi_argv, open_clock, parse_amd_smi


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
    with pytest.raises(OSError, match="nvmlDeviceGetHandleByUUID failed with NVML status 6"):
        NvmlClock("other", FakeNvml())
    with pytest.raises(OSError, match="nvmlInit_v2"):
        NvmlClock("00-11", object())
    assert NvmlClock("00-11", FakeNvml(status=3)).mhz() is None


def test_a_missing_library_is_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without NVML, or with a clock that never says anything, there is no clock and nothing is raised."""
    monkeypatch.setattr(clocks, "_NVML", "libno-such-library.so.1")
    assert open_clock("00-11") is None
    monkeypatch.setenv("PATH", "")
    assert open_clock("", amd_index=0) is None


def test_amd_smi_is_asked_for_one_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's JSON is what is read; a command that fails is no reading."""
    assert amd_smi_argv(3) == ["amd-smi", "metric", "--gpu", "3", "--clock", "--json"]
    program = tmp_path / "amd-smi"
    program.write_text(f"#!/bin/sh\n[ $3 = 1 ] || exit 1\ncat <<'END'\n{_amd_json(2100)}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert AmdSmiClock(1).mhz() == 2100
    assert AmdSmiClock(0).mhz() is None
    clock = open_clock("", amd_index=1)
    assert clock is not None
    assert clock.mhz() == 2100


def _amd_json(*mhz: object, wrapped: bool = False) -> str:
    entries = {f"gfx_{i}": {"clk": {"value": v, "unit": "MHz"}, "clk_locked": "DISABLED"} for i, v in enumerate(mhz)}
    memory = {"mem_0": {"clk": {"value": 9999, "unit": "MHz"}}}
    gpus = [{"gpu": 0, "clock": {**entries, **memory}}]
    return json.dumps({"gpu_data": gpus} if wrapped else gpus)


def test_amd_smi_output() -> None:
    """The fastest XCD counts, memory does not; the list may be inside "gpu_data"; idle XCDs say N/A."""
    assert parse_amd_smi(_amd_json(132, 2103, 131)) == 2103
    assert parse_amd_smi(_amd_json(2103, wrapped=True)) == 2103
    assert parse_amd_smi(_amd_json("N/A", 1700)) == 1700
    assert parse_amd_smi(_amd_json("N/A")) is None


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["gpu_data", "clock", "gfx_0", "clk", "value"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(_JSON.map(json.dumps) | st.text(max_size=30))
def test_amd_smi_output_of_another_kind_is_no_reading(text: str) -> None:
    """Whatever the command prints, there is a number or None."""
    assert isinstance(parse_amd_smi(text), float | None)


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
