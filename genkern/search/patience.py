"""When a search by predicted order has seen enough."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

from genkern.farm.workshop import compiled_of
from genkern.gemm.config import Config
from genkern.kernels.catalogue import form_of

# So many binaries of each form of a family are tried before all others: the predictor may be wrong about a form as a
# whole.
# Replayed on 12 unfriendly bf16 sizes (H200; benchmarks/README.md) with a patience of 192, that takes 35.0 % of the
# binaries instead of 34.6 %, and loses nothing either way. With 8, a patience of 160 loses 4.7 % on one size.
_OF_EACH_FORM = 4


def forms_first(configs: Sequence[Config]) -> list[Config]:
    """`configs`, the most promising first, with the first four binaries of each form before all others."""
    binaries: dict[str, set[Hashable]] = defaultdict(set)
    ahead, behind = [], []
    for config in configs:
        these, binary = binaries[form_of(config).stem], compiled_of(config)
        if binary in these or len(these) < _OF_EACH_FORM:
            these.add(binary)
            ahead.append(config)
        else:
            behind.append(config)
    return [*ahead, *behind]


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
