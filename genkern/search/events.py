"""Conversions between measurements and the events that a strategy is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from genkern.gemm.config import Config
from genkern.gemm.records import Measurement, Outcome
from genkern.search.strategy import Lost, Measured, Refused, Unit

# Significant digits of the screening's times, which only decide which candidates are timed again.
_SCREEN_DIGITS = 5


def event_of(config: Config, measurement: Measurement) -> Measured | Lost:
    """Return the event for a config's measurement."""
    us = measurement.duration_us
    timed = measurement.outcome is Outcome.MEASURED and us is not None
    return Measured(config, us) if timed and us is not None else Lost(config, measurement.outcome)


def split_off_unfit(unit: Unit, unfit: Mapping[str, Outcome]) -> tuple[Unit, list[Refused]]:
    """Return a unit without the configs that are known to be `unfit` (by name), and the events for these configs."""
    reasons: dict[Outcome, list[Config]] = {}
    for config in unit.configs if unfit else ():
        if (outcome := unfit.get(config.name)) is not None:
            reasons.setdefault(outcome, []).append(config)
    if not reasons:
        return unit, []
    fit = Unit(tuple(config for config in unit.configs if config.name not in unfit))
    return fit, [Refused(unit, tuple(configs), outcome) for outcome, configs in reasons.items()]


def with_rounded_times(measurement: Measurement) -> Measurement:
    """Return a measurement of the screening with rounded times.

    They have a noise of some percent, and make up most of a journal.
    """
    if measurement.duration_us is None:
        return measurement
    samples_us = tuple(_rounded(us) for us in measurement.samples_us)
    return replace(measurement, duration_us=_rounded(measurement.duration_us), samples_us=samples_us)


def _rounded(us: float) -> float:
    return float(f"{us:.{_SCREEN_DIGITS}g}")
