"""When a search by predicted order has seen enough."""

from __future__ import annotations

import math


class Patience:
    """Counts binaries since the best time was last beaten; `most` of them in a row are enough, and 0 never is.

    `best_us` is what is known beforehand, in microseconds. Configs that share a binary count once: they differ in the
    order of tiles alone.
    """

    def __init__(self, most: int, best_us: float | None = None) -> None:
        self._most = most
        self._best_us = math.inf if best_us is None else best_us
        self._in_vain: set[str] = set()

    def ends(self, binary: str, duration_us: float | None) -> bool:
        """Whether it is enough, now that a config with this binary took so long; None where it could not be timed."""
        if duration_us is not None and duration_us < self._best_us:
            self._best_us = duration_us
            self._in_vain.clear()
        else:
            self._in_vain.add(binary)
        return 0 < self._most <= len(self._in_vain)
