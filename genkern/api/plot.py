"""A picture of results, by matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import ScalarFormatter

from genkern.errors import InputError

if TYPE_CHECKING:
    from genkern.api.result import TuningResult

# Times that differ by more than this factor are drawn on a logarithmic axis.
_DECADE = 10.0
# Inches per size, and of the rest.
_SIZE_INCHES, _LEAST_INCHES, _MOST_INCHES, _HEIGHT_INCHES = 0.35, 4.0, 16.0, 4.0


def draw(result: TuningResult, ax: Axes | None) -> Axes:
    """Draw a point per winner and return the axes; see `TuningResult.plot`.

    Raises InputError if no winner has a time.
    """
    timed = [(winner, winner.time_us) for winner in result.winners if winner.time_us is not None]
    if not timed:
        raise InputError("there is nothing to draw: no winner has a time")
    if ax is None:
        width = min(_MOST_INCHES, max(_LEAST_INCHES, _SIZE_INCHES * len(timed) + 2))
        _, ax = plt.subplots(figsize=(width, _HEIGHT_INCHES), layout="constrained")
    places = range(len(timed))
    ratios = [winner.speedup for winner, _ in timed if winner.speedup is not None]
    where = ", ".join(result.devices)
    if len(ratios) == len(timed):
        ax.axhline(1.0, color="gray", linewidth=1)
        ax.plot(places, ratios, "o")
        ax.set_ylabel("speed over the library")
        ax.set_title(f"{where}: measured")
    else:
        for place, (winner, us) in zip(places, timed, strict=True):
            ax.plot([place, place], winner.interval_us or (us, us), color="gray", linewidth=1)
        ax.plot(places, [us for _, us in timed], "o")
        times_us = [us for _, us in timed]
        if max(times_us) > _DECADE * min(times_us):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(ScalarFormatter())
        ax.set_ylabel("microseconds")
        what = "predicted, 80 % intervals" if result.predicted else "measured"
        ax.set_title(f"{where}: {what}")
    ax.set_xticks(list(places), [winner.problem.size for winner, _ in timed], rotation=90)
    return ax
