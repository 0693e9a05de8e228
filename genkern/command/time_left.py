"""`TimeLeft`: how long the remaining sizes of a run will take, from how long the finished ones took."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# Seconds between two lines.
_EVERY_S = 10.0
# No estimate before this number of finished sizes: the first ones include imports, and say little about the others.
_LEAST = 3
# Finished sizes that an estimate is made from: neighbours in a list take similar time.
_WINDOW = 16


@dataclass(frozen=True)
class Estimate:
    """The state of a run: sizes done of all, and seconds that the others are expected to take."""

    done: int
    sizes: int
    left_s: float


class TimeLeft:
    """Estimates the time that is left whenever a size has finished, at most every 10 seconds.

    The estimate is the mean time between the last 16 finished sizes, multiplied by the number of remaining sizes. Sizes
    that finish together, by several processes or GPUs, are counted in the same way. `clock` returns seconds.
    """

    def __init__(self, sizes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._sizes, self._clock = sizes, clock
        self._ends: deque[float] = deque(maxlen=_WINDOW)
        self._done = 0
        self._told_s = clock()

    def finished(self) -> Estimate | None:
        """Count a finished size; returns an estimate if one is due."""
        now_s = self._clock()
        self._ends.append(now_s)
        self._done += 1
        left = self._sizes - self._done
        if left < 1 or self._done < _LEAST or now_s - self._told_s < _EVERY_S:
            return None
        self._told_s = now_s
        each_s = (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1)
        return Estimate(self._done, self._sizes, left * each_s)


def duration_text(seconds: float) -> str:
    """Return `4.2 s`, `3 min 12 s`, `2 h 5 min` or `3 d 4 h`; never negative, even if the clock was set back."""
    if not 59.95 <= seconds < math.inf:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
