"""Tests of timing/time_sources.py."""

from __future__ import annotations

import pytest

from genkern.timing.profiler import TIMERS, usual_timer, vendor_of, visible_variable


def test_a_timer_belongs_to_one_vendor() -> None:
    """Its name says whose GPUs it is for, and which variable shows a process the one of them."""
    names = [name for timers in TIMERS.values() for name in timers]
    assert len({*names}) == len(names)
    for vendor in TIMERS:
        assert vendor_of(usual_timer(vendor)) == vendor
    assert visible_variable("hipevents") == "HIP_VISIBLE_DEVICES"
    assert visible_variable("cupti") == "CUDA_VISIBLE_DEVICES"
    with pytest.raises(KeyError):
        vendor_of("rocprofv3")
