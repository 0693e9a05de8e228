"""Tests of genkern/timing/blocks.py, on a simulated device whose clock follows its load."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from genkern.timing.blocks import BLOCK_US, SETTLE_US, are_long, block_copies, in_blocks


class HotDevice:
    """Its clock goes, with a time constant of 2 ms, to where the load of what runs leaves the power at its limit."""

    def __init__(self) -> None:
        self.clock = 1.0
        self.busy_us = 0.0

    def sampler(self, us: float, watts: float, calls: int) -> Callable[[], float]:
        """Of calls that take `us` at full clock, and at full clock `watts` times the limit."""

        def sample() -> float:
            sample_us = us * calls / self.clock
            settled = 1 / max(1.0, watts)
            self.clock = settled + (self.clock - settled) * math.exp(-sample_us / 2_000)
            self.busy_us += sample_us
            return sample_us / calls

        return sample


def test_in_blocks_each_has_its_own_clock() -> None:
    """In rounds of single samples a call that takes 10 % less power seems as fast as the other; users see it faster."""
    device = HotDevice()
    calls = 10
    hot, cool = (device.sampler(50.0, watts, calls) for watts in (1.2, 1.1))
    order, draw = [hot, cool], random.Random(0)
    single: dict[int, list[float]] = {0: [], 1: []}
    for _ in range(200):
        draw.shuffle(order)
        for each in order:
            single[[hot, cool].index(each)].append(each())
    mixed = sum(single[0][-100:]) / sum(single[1][-100:])
    assert mixed == pytest.approx(1, abs=0.03)
    one, other = in_blocks(hot, calls), in_blocks(cool, calls)
    for _ in range(3):
        assert (one(), other()) == (pytest.approx(60, rel=2e-3), pytest.approx(55, rel=2e-3))


@pytest.mark.parametrize(("us", "calls"), [(40.0, 128), (2_500.0, 2), (13_000.0, 1), (70_000.0, 1)])
def test_a_block_is_as_long_as_it_says(us: float, calls: int) -> None:
    """Of the longest calls one settles the clock, and one counts."""
    device = HotDevice()
    assert in_blocks(device.sampler(us, 1.0, calls), calls)() == us
    assert BLOCK_US <= device.busy_us <= max(BLOCK_US + us * calls, 2 * us)
    assert device.busy_us >= SETTLE_US + us


@pytest.mark.parametrize(("us", "copies", "calls"), [(40.0, 1, 125), (40.0, 4, 124), (350.0, 6, 12), (9_000.0, 2, 2)])
def test_a_sample_of_a_block_uses_each_copy_equally_often(us: float, copies: int, calls: int) -> None:
    """About 5 ms of calls, and no fewer than the copies."""
    found = block_copies(range(copies), us)
    assert len(found) == calls
    assert {found.count(copy) for copy in range(copies)} == {calls // copies}


def test_long_calls_are_those_that_run_at_the_power_limit() -> None:
    """As in the semi-finals."""
    assert [are_long(us) for us in (39.9, 40.0)] == [False, True]
