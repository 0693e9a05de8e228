"""Told: measurements as events, and what is known of a unit before it is made."""

from __future__ import annotations

from genkern.gemm.config import Config
from genkern.gemm.records import Measurement, Outcome
from genkern.search.events import event_of, split_off_unfit, with_rounded_times
from genkern.search.strategy import Lost, Measured, Refused, Unit

ONE, OTHER, THIRD = CONFIGS = tuple(Config("tiled", 64, 64, 64, group) for group in (8, 4, 1))
UNIT = Unit(CONFIGS)


def test_a_measurement_is_an_event() -> None:
    timed = Measurement(ONE.name, Outcome.MEASURED, "cudagraph", "screen", 12.345678, (12.345678, 13.0))
    assert event_of(ONE, with_rounded_times(timed)) == Measured(ONE, 12.346)
    assert with_rounded_times(timed).samples_us == (12.346, 13.0)
    lost = Measurement(ONE.name, Outcome.CRASHED, "cudagraph")
    assert event_of(ONE, with_rounded_times(lost)) == Lost(ONE, Outcome.CRASHED)


def test_what_is_known_to_be_unfit_is_told_apart() -> None:
    assert split_off_unfit(UNIT, {}) == (UNIT, [])
    assert split_off_unfit(UNIT, {"another": Outcome.CRASHED}) == (UNIT, [])
    unfit = {ONE.name: Outcome.COMPILE_FAILED, THIRD.name: Outcome.COMPILE_TIMED_OUT}
    fit, events = split_off_unfit(UNIT, unfit)
    assert fit == Unit((OTHER,))
    assert events == [Refused(UNIT, (ONE,), Outcome.COMPILE_FAILED), Refused(UNIT, (THIRD,), Outcome.COMPILE_TIMED_OUT)]
