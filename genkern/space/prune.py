"""Pruning: from a space, a problem and a GPU to the configs worth compiling, with a reason for every other config.

Legality is always checked first (genkern.kernels.legality), then the space's rules, one after the other. Both are masks
over tables of configs; the first one that is True for a config counts for it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from genkern.gemm.columns import Mask, Refusals
from genkern.gemm.config import Config
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import refused_values, traits_of
from genkern.kernels.legality import legal_problem, refused_kernels, refused_run_time
from genkern.space.rules.registry import is_for, reason, rule_for
from genkern.space.rules.sum_order import order_rule
from genkern.space.space import Part, Space, listed_problem

# Axes of a part's table: configs that share a binary are neighbours.
_FIRST_AXES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps")
_LAST_AXES = ("num_stages", "SPLIT_K", "GROUP_SIZE_M")
# A mask of more values than this is kept for the remaining configs only, once they are at most a fraction of it.
_MANY, _FRACTION = 4096, 8


class Configs(Sequence[Config]):
    """Configs that lie in tables. The first access to one of them makes all `Config` objects; `len` makes none.

    tables: the configs as columns, in order.
    """

    def __init__(self, tables: Sequence[ConfigTable]) -> None:
        self.tables = tuple(tables)
        self._made: list[Config] | None = None

    def __len__(self) -> int:
        return sum(table.size for table in self.tables)

    @overload
    def __getitem__(self, place: int) -> Config: ...
    @overload
    def __getitem__(self, place: slice) -> list[Config]: ...
    def __getitem__(self, place: int | slice) -> Config | list[Config]:
        return self._all()[place]

    def __iter__(self) -> Iterator[Config]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _all(self) -> list[Config]:
        if self._made is None:
            self._made = [config for table in self.tables for config in table.configs()]
        return self._made


@dataclass(frozen=True)
class Pruned:
    """The result of pruning, in the order of the space.

    kept: configs worth compiling.
    dropped: number of legal configs by the first rule that drops them, in the space's order of rules. Rules that drop
        none have 0.
    total: size of the space, which is len(kept) + sum(dropped.values()) + sum(illegal.values()).
    illegal: number of configs by the reason why they cannot compute the problem on the GPU.
    """

    kept: Sequence[Config]
    dropped: dict[str, int]
    total: int
    illegal: dict[str, int]

    @property
    def binaries(self) -> int:
        """Number of main kernels to compile.

        Configs that differ only in run-time parameters (GROUP_SIZE_M, the value of SPLIT_K) share them.
        """
        return len({_binary_of(config) for config in self.kept})


def _binary_of(config: Config) -> tuple[object, ...]:
    others = tuple(other for other in config.others if not PARAMETERS.by_name[other[0]].at_run_time)
    tile = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, config.num_warps, config.num_stages
    return config.SPLIT_K > 1 and traits_of(config).split_apart, config.family, *tile, others


def prune(space: Space, problem: GemmProblem, gpu: Gpu) -> Pruned:
    """Return the legal configs for this problem on this GPU that no rule drops, and counts of the other configs."""
    import numpy as np

    dropped = dict.fromkeys(itertools.chain(space.rules, *(family.rules or () for family in space.families)), 0)
    if space.order:
        dropped[order_rule(space.order)] = 0
    illegal: Counter[str] = Counter()
    kept = []
    # Configs that an earlier mask excludes may divide by 0 in a later one, whose values for them do not matter.
    with np.errstate(all="ignore"):
        for family in space.families:
            rules = space.rules if family.rules is None else family.rules
            # The order is checked last: its texts take longer than all other rules together.
            rules = (*rules, order_rule(space.order)) if space.order else rules
            for part in family.parts():
                if why := legal_problem(problem, part.family, part.chosen, gpu):
                    illegal[why] += part.size
                    continue
                left = _Remaining(table_of(part))
                illegal.update(_drop_illegal(left, part, problem, gpu))
                _drop_by_rules(left, rules, part, problem, gpu, dropped)
                if left.count:
                    kept.append(left.configs())
    return Pruned(Configs(kept), dropped, space.size, {why: count for why, count in illegal.items() if count})


def table_of(part: Part) -> ConfigTable:
    """Return the table of all configs of a part, in the order of the space."""
    ranges = dict(part.ranges)
    middle = (name for name in ranges if name not in (*_FIRST_AXES, *_LAST_AXES))
    names = (*_FIRST_AXES, *middle, *_LAST_AXES)
    return ConfigTable.product(part.family, part.chosen, ((name, ranges[name]) for name in names))


def _drop_illegal(left: _Remaining, part: Part, problem: GemmProblem, gpu: Gpu) -> dict[str, int]:
    """Drop illegal configs, and return their numbers by reason, in the order of the first tiles that have them."""
    of_tile = math.prod(len(values) for name, values in part.ranges if name in _LAST_AXES)
    found: dict[str, int] = {}
    tiles: dict[str, int] = {}
    for mask, why in _refusals(problem, part, left.table, gpu):
        first = left.first_of(mask)
        if first is not None:
            tiles[why] = min(first // of_tile, tiles.get(why, first))
            found[why] = found.get(why, 0) + left.drop(mask)
        if not left.count:
            break
    return {why: found[why] for why in sorted(found, key=tiles.__getitem__)}


def _refusals(problem: GemmProblem, part: Part, configs: ConfigTable, gpu: Gpu) -> Refusals:
    # Reading a space file already refuses values that no config of the form can have, so this check is needed only for
    # spaces made in other ways.
    if listed_problem(part):
        yield from refused_values(configs)
    yield from refused_kernels(problem, configs, gpu)
    yield from refused_run_time(problem, configs, gpu)


def _drop_by_rules(
    left: _Remaining, rules: Sequence[str], part: Part, problem: GemmProblem, gpu: Gpu, dropped: dict[str, int]
) -> None:
    """Drop configs by one rule after the other, and add their numbers to `dropped`."""
    traits = traits_of(left.table)
    group_sizes = tuple(size for size in dict(part.ranges)["GROUP_SIZE_M"] if isinstance(size, int))
    for name in rules:
        if not left.count:
            return
        if is_for(name, traits):
            left.compact()
            dropped[name] += left.drop(rule_for(name, group_sizes)(problem, left.table, gpu))


class _Remaining:
    """The configs of a table that nothing has dropped so far.

    table: the table, which `compact` replaces by a smaller one.
    count: the number of remaining configs.
    """

    def __init__(self, table: ConfigTable) -> None:
        self.table = table
        self.count = table.size
        # True for the remaining configs. Its shape broadcasts to the table's: it has only the axes that some mask had,
        # so that it stays small as long as the masks depend on few parameters.
        self._mask: Any = True

    def first_of(self, mask: Mask) -> int | None:
        """Return the place of the first remaining config for which the mask is True; None if there is none."""
        import numpy as np

        if mask is False:
            return None
        both = np.asarray(self._mask & mask)
        if not both.any():
            return None
        place = np.unravel_index(both.argmax(), both.shape)
        return int(np.ravel_multi_index(place, self.table.shape)) if place else 0

    def drop(self, mask: Mask) -> int:
        """Drop the configs for which the mask is True, and return how many of the remaining configs these are."""
        import numpy as np

        if mask is False or not np.any(mask):
            return 0
        before = self.count
        self._mask = self._mask & np.logical_not(mask)
        self.count = int(np.count_nonzero(self._mask)) * (self.table.size // np.size(self._mask))
        return before - self.count

    def compact(self) -> None:
        """Replace the table by one of the remaining configs if these are few of many."""
        if getattr(self._mask, "size", 1) > max(_MANY, _FRACTION * self.count):
            self.table, self._mask = self.configs(), True

    def configs(self) -> ConfigTable:
        """Return the remaining configs as a table with one axis."""
        return self.table.rows(self._mask)


def explain(pruned: Pruned) -> str:
    """Return a table for users: how many configs are illegal and how many each rule dropped, with the reasons."""
    rows = [("illegal", count, why) for why, count in pruned.illegal.items()]
    rows += [(name, count, reason(name)) for name, count in pruned.dropped.items()]
    rows.append(("kept", len(pruned.kept), f"in {pruned.binaries:,} binaries"))
    width = max(len("rule"), *(len(name) for name, _, _ in rows))
    lines = [f"{'rule':<{width}}  {'configs':>9}  {'share':>6}  why"]
    for name, count, why in rows:
        share = f"{count / pruned.total:.1%}"
        lines.append(f"{name:<{width}}  {count:>9,}  {share:>6}  {why}")
    lines.append(
        f"{'total':<{width}}  {pruned.total:>9,}  {'100.0%':>6}  each config counts for the first reason to drop it"
    )
    return "\n".join(lines)
