"""`ConfigTable`: configs as columns, one for each parameter. Legality and pruning rules are expressions on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from genkern.gemm.columns import Column
from genkern.gemm.config import Config, Others
from genkern.gemm.parameter import CORE, PARAMETERS, Value

_CORE = tuple(parameter.name for parameter in CORE)


class ConfigTable:
    """Configs of one family that have the parameters which change the kernel text in common.

    Each parameter is an attribute by its name, as it is of a `Config`: its column (`genkern.gemm.columns`).

    family: the family's name.
    others: the non-neutral parameters that all configs share, in the order of config names.
    shape: the shape to which all columns broadcast; () for a single config. `size` is the number of configs. The
        configs lie in C order: the last axis varies fastest.
    """

    family: str
    others: Others
    shape: tuple[int, ...]

    def __init__(self, family: str, others: Others, columns: Mapping[str, Column], shape: tuple[int, ...]) -> None:
        self.family, self.others, self.shape = family, others, shape
        self._columns = columns
        # Shared parameters before columns: a column replaces a parameter of the same name.
        self.__dict__.update(others)
        self.__dict__.update(columns)

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for names that are no attributes yet.
        try:
            return PARAMETERS.neutral[name]
        except KeyError:
            raise AttributeError(f"a config has no parameter {name!r}") from None

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @classmethod
    def of(cls, config: Config) -> ConfigTable:
        """Return the table of a single config. Its columns are plain numbers and words."""
        return cls(config.family, config.others, {name: getattr(config, name) for name in _CORE}, ())

    @classmethod
    def product(cls, family: str, others: Others, ranges: Iterable[tuple[str, Sequence[Value]]]) -> ConfigTable:
        """Return the table of all combinations of values. Each parameter with several values has an axis of its own."""
        import numpy as np

        ranges = [(name, tuple(values)) for name, values in ranges]
        long = [name for name, values in ranges if len(values) != 1]
        columns: dict[str, Column] = {}
        shape: list[int] = []
        for name, values in ranges:
            if len(values) == 1:
                columns[name] = values[0]
                continue
            axes = [1] * len(long)
            axes[len(shape)] = len(values)
            shape.append(len(values))
            columns[name] = np.array(values).reshape(axes)
        return cls(family, others, columns, tuple(shape))

    def with_values(self, **columns: Column) -> ConfigTable:
        """Return the same configs with these columns instead."""
        return ConfigTable(self.family, self.others, {**self._columns, **columns}, self.shape)

    def without(self, *names: str) -> ConfigTable:
        """Return the combinations of the other parameters, with 1 for the parameters `names`.

        In a table of a product, axes of the parameters `names` have length 1.
        """
        import numpy as np

        columns = {**self._columns, **dict.fromkeys(names, 1)}
        ones = (1,) * len(self.shape)
        shape = np.broadcast_shapes(ones, *(np.shape(column) for column in columns.values()))
        return ConfigTable(self.family, self.others, columns, shape)

    def rows(self, mask: Column) -> ConfigTable:
        """Return the configs for which the mask is True, in a table with one axis."""
        import numpy as np

        if not self.shape:
            return ConfigTable(self.family, self.others, self._columns, (int(bool(mask)),))
        places = np.nonzero(np.broadcast_to(mask, self.shape))
        columns = {name: _taken(column, places) for name, column in self._columns.items()}
        return ConfigTable(self.family, self.others, columns, (len(places[0]),))

    def configs(self) -> list[Config]:
        """Return the configs as objects, in their order."""
        import numpy as np

        listed = {
            # `tolist` and `item` give Python's numbers: NumPy's have neither `bit_length` nor a form in JSON.
            name: np.broadcast_to(column, self.shape).ravel().tolist()
            if np.ndim(column)
            else [column.item() if isinstance(column, np.generic) else column] * self.size
            for name, column in self._columns.items()
        }
        others = self._others_of(listed)
        core = (listed[name] for name in _CORE)
        return [Config(self.family, *values) for values in zip(*core, others, strict=True)]

    def _others_of(self, listed: Mapping[str, Sequence[Value]]) -> Sequence[Others]:
        """Return the non-neutral parameters of each config, from the values of each parameter."""
        more = [name for name in listed if name not in _CORE]
        if not more:
            return [self.others] * self.size
        # Thousands of configs have few combinations of these parameters.
        known: dict[tuple[Value, ...], Others] = {}
        found = []
        for values in zip(*(listed[name] for name in more), strict=True):
            if (others := known.get(values)) is None:
                named = {**dict(self.others), **dict(zip(more, values, strict=True))}
                off = [(name, value) for name, value in named.items() if value != PARAMETERS.neutral[name]]
                others = known[values] = tuple(sorted(off, key=lambda item: PARAMETERS.place[item[0]]))
            found.append(others)
        return found


def tables_of(configs: Sequence[Config]) -> list[tuple[ConfigTable, list[int]]]:
    """Return the configs as tables, each with the places of its configs in `configs`."""
    import numpy as np

    alike: dict[tuple[str, Others], list[int]] = {}
    for place, config in enumerate(configs):
        alike.setdefault((config.family, config.others), []).append(place)
    found = []
    for (family, others), places in alike.items():
        columns = {name: np.array([getattr(configs[place], name) for place in places]) for name in _CORE}
        found.append((ConfigTable(family, others, columns, (len(places),)), places))
    return found


def _taken(column: Column, places: tuple[Any, ...]) -> Column:
    """Return a column's values at these places of the table."""
    import numpy as np

    if not np.ndim(column):
        return column
    # Along an axis of length 1 all configs share a value.
    return column[tuple(0 if length == 1 else place for length, place in zip(column.shape, places, strict=True))]
