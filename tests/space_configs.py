"""Every config of a space, one by one, in the space's order: what pruning is held to."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator

from genkern.gemm.config import Config, Others
from genkern.gemm.parameter import CORE, PARAMETERS, Value
from genkern.space.space import FamilySpace, Space

_CORE = tuple(parameter.name for parameter in CORE)
_FIRST = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps")
# The last of these varies fastest: configs that share a binary are neighbours.
_LAST = ("num_stages", "SPLIT_K", "GROUP_SIZE_M")


def configs_of(space: Space) -> Iterator[Config]:
    """Of each family in turn."""
    for family in space.families:
        yield from configs_of_family(family)


def configs_of_family(family: FamilySpace) -> Iterator[Config]:
    """Kernels of one text together, of these those of a tile."""
    ranges = dict(family.ranges)
    text = [name for name in ranges if PARAMETERS.by_name[name].in_text]
    order = (*text, *_FIRST, *(name for name in ranges if name not in (*text, *_FIRST, *_LAST)), *_LAST)
    core = operator.itemgetter(*(order.index(name) for name in _CORE))
    more = [number for number, name in enumerate(order) if name not in _CORE]
    # Of values of the parameters beside the core, what a config has of them: few, for many configs.
    known: dict[tuple[Value, ...], Others] = {}
    for values in itertools.product(*(ranges[name] for name in order)):
        beside = tuple(values[number] for number in more)
        if (others := known.get(beside)) is None:
            named = {order[number]: values[number] for number in more}
            known[beside] = others = Config(family.family, *core(values), **named).others  # type: ignore[arg-type]
        yield Config(family.family, *core(values), others)
