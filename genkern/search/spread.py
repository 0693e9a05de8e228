"""The strategy spread[:N]: N kernels from all over a size's space, which show what its times depend on.

Kernels are chosen at positions along the predicted order, more densely near its beginning. At each position, of the
kernels nearby, the one is chosen that differs most from the kernels chosen before. If a binary serves several values of
SPLIT_K, up to three are measured. `genkern calibrate` uses this strategy.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from genkern.gemm.config import CONFIG_FIELDS, Config
from genkern.search.cost_model.predict import promising_first
from genkern.search.strategy import Strategy, Task, Unit, units_of

USUAL = 24
# Exponent of the positions: kernels lie more densely near the beginning of the order.
_THICKER = 1.7
# The share of the distance between two positions in which the kernel is searched that differs most.
_NEARBY = 0.9
_SPLITS = 3
# Larger spaces are thinned to at most this many configs before they are ordered.
_MOST_ORDERED = 20_000


class Spread(Strategy):
    """Asks for its kernels in the order of their positions, whatever it is told."""

    left_out = "it is not in the sample (spread:N)"

    def __init__(self, task: Task) -> None:
        # The choice does not depend on an earlier start: the search tells known results without measuring again.
        self._left = list(reversed(spread(task, task.number or USUAL)))

    def ask(self, n: int) -> Sequence[Unit]:
        return [self._left.pop() for _ in range(min(n, len(self._left)))]


def spread(task: Task, count: int) -> list[Unit]:
    """Return up to `count` units, each with one config for each of up to three values of SPLIT_K."""
    step = -(-len(task.configs) // _MOST_ORDERED)
    units = units_of(promising_first(task.problem, task.configs[::step] if step else (), task.gpu))
    if len(units) <= count:
        return [_few(unit) for unit in units]
    bounds = [round((len(units) - 1) * (place / count) ** _THICKER) for place in range(count + 1)]
    seen: Counter[tuple[str, object]] = Counter()
    chosen: list[Unit] = []
    taken: set[int] = set()
    for first, last in itertools.pairwise(bounds):
        width = max(1, round((last - first) * _NEARBY))
        nearby = [place for place in range(first, min(len(units), first + width)) if place not in taken]
        if not nearby:
            nearby = [next(place for place in range(first, len(units)) if place not in taken)]
        # The kernel whose values were seen least often before; ties go to the more promising one.
        place = min(nearby, key=lambda each: sum(seen[value] for value in _values(units[each].configs[0])))
        taken.add(place)
        seen.update(_values(units[place].configs[0]))
        chosen.append(_few(units[place]))
    return chosen


def _values(config: Config) -> list[tuple[str, object]]:
    named = [(name, getattr(config, name)) for name in CONFIG_FIELDS if name != "GROUP_SIZE_M"]
    return [*named, *config.others]


def _few(unit: Unit) -> Unit:
    by_split: dict[int, Config] = {}
    for config in unit.configs:
        by_split.setdefault(config.SPLIT_K, config)
    return Unit(tuple(by_split[split] for split in list(by_split)[:_SPLITS]))


strategy = Spread
