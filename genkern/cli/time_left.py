"""`TimeLeft`: how long the remaining sizes of a run will take, from how long the finished ones took."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from genkern.gemm.problem import GemmProblem

# Seconds between two lines.
_EVERY_S = 10.0
# No estimate before this number of finished sizes: the first one includes imports.
_LEAST = 4
# Most finished sizes that an estimate is made from (the last ones), and most remaining sizes that it is made for
# (evenly chosen), so that it takes some 30 ms.
_MOST = 256


@dataclass(frozen=True)
class Estimate:
    """The state of a run: sizes done of all, and seconds that the others are expected to take."""

    done: int
    sizes: int
    left_s: float


class TimeLeft:
    """Estimates the time that is left whenever a size has finished, at most every 10 seconds.

    The time of a remaining size is the mean time of the finished ones, in which those that are like it in M and in N
    times K weigh most: a factor of 2 in either halves the weight. A size's time is that since the size before it has
    finished, so that several processes or GPUs are counted too. `clock` returns seconds.
    """

    def __init__(self, problems: Sequence[GemmProblem], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = dict.fromkeys(problems)
        self._sizes, self._clock = len(self._left), clock
        self._took: deque[tuple[GemmProblem, float]] = deque(maxlen=_MOST)
        self._told_s = self._last_s = clock()

    def finished(self, problem: GemmProblem) -> Estimate | None:
        """Count a finished size; returns an estimate if one is due."""
        now_s = self._clock()
        self._left.pop(problem, None)
        self._took.append((problem, now_s - self._last_s))
        self._last_s = now_s
        done = self._sizes - len(self._left)
        if done == 1:
            # It includes the start of the run.
            self._took.clear()
        if not self._left or done < _LEAST or now_s - self._told_s < _EVERY_S:
            return None
        self._told_s = now_s
        chosen = list(self._left)[:: -(-len(self._left) // _MOST)]
        mean_s = sum(map(self._expected_s, chosen)) / len(chosen)
        return Estimate(done, self._sizes, mean_s * len(self._left))

    def _expected_s(self, problem: GemmProblem) -> float:
        weights = [math.pow(2.0, -_distance(problem, other)) for other, _ in self._took]
        return sum(w * seconds for w, (_, seconds) in zip(weights, self._took, strict=True)) / sum(weights)


def _distance(one: GemmProblem, other: GemmProblem) -> float:
    """Return the number of factors of 2 between the M, and between the products of N and K, of two problems."""
    return abs(math.log2(one.M / other.M)) + abs(math.log2(one.N * one.K / (other.N * other.K)))


def duration_text(seconds: float) -> str:
    """Return `4.2 s`, `3 min 12 s`, `2 h 5 min` or `3 d 4 h`; never negative, even if the clock was set back."""
    if not 59.95 <= seconds < math.inf:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"
