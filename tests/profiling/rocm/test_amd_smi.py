"""Tests of profiling/rocm/amd_smi.py."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.profiling.rocm.amd_smi import parse_drivers, parse_max_clocks


def _clocks(wrapped: bool = False) -> str:
    def domain(now: object, most: object) -> dict[str, object]:
        return {"clk": {"value": now, "unit": "MHz"}, "max_clk": {"value": most, "unit": "MHz"}, "clk_locked": "N/A"}

    clock = {"gfx_0": domain(132, 2100), "gfx_1": domain("N/A", "N/A"), "mem_0": domain(900, 1300), "vclk_0": "N/A"}
    gpus = [{"gpu": 0, "clock": clock}]
    return json.dumps({"gpu_data": gpus} if wrapped else gpus)


@pytest.mark.parametrize("wrapped", [False, True])
def test_what_the_clocks_may_reach_is_not_what_they_are(wrapped: bool) -> None:
    """Graphics and memory, each by its own name; the list may be inside "gpu_data"."""
    assert parse_max_clocks(_clocks(wrapped)) == (2100, 1300)
    assert parse_max_clocks("[]") == (None, None)


def test_the_driver_by_either_key() -> None:
    """A version starts with a digit; anything else is none."""
    assert parse_drivers(json.dumps([{"driver": {"name": "amdgpu", "version": "6.10.5-2095.1"}}])) == ["6.10.5-2095.1"]
    assert parse_drivers(json.dumps({"gpu_data": [{"driver": {"driver_version": "6.7.0"}}]})) == ["6.7.0"]
    assert parse_drivers(json.dumps([{"driver": {"version": "N/A"}}, {"driver": "N/A"}, 3])) == []


_KEYS = st.sampled_from(["gpu_data", "clock", "gfx_0", "mem_0", "clk", "max_clk", "value", "driver", "version"])
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=12,
)


@given(_JSON.map(json.dumps) | st.text(max_size=30))
def test_output_of_another_kind_says_nothing(text: str) -> None:
    """Whatever the command prints, there are numbers, versions or nothing."""
    assert all(isinstance(mhz, int | None) for mhz in parse_max_clocks(text))
    assert all(isinstance(version, str) for version in parse_drivers(text))
