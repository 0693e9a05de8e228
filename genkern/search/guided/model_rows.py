"""Rows: the configs of a size for the model. A row is a binary with a SPLIT_K, for all values of GROUP_SIZE_M.

GROUP_SIZE_M matters less, so the other values are tried last.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from genkern.gemm.config import Config
from genkern.kernels.catalogue import traits_of
from genkern.search.cost_model.predict import BUT_GROUP_SIZE_M, from_usual
from genkern.search.strategy import Unit, units_of

Places = npt.NDArray[np.int64]


class Rows:
    """The rows of some configs.

    configs: [rows] the config with the value of GROUP_SIZE_M nearest to the usual one
    others: [rows] the configs with other values
    units, of_unit: the units, and the rows of each
    unit, kind: [rows] the number of the unit and of the form
    place: the row of each config of `configs`
    """

    def __init__(self, configs: Iterable[Config]) -> None:
        self.units = units_of(configs)
        self.configs: list[Config] = []
        self.others: list[list[Config]] = []
        self.of_unit: list[list[int]] = []
        kinds: dict[str, int] = {}
        unit, kind = [], []
        for number, each in enumerate(self.units):
            siblings: dict[object, list[Config]] = {}
            for config in each.configs:
                siblings.setdefault(BUT_GROUP_SIZE_M(config), []).append(config)
            self.of_unit.append(list(range(len(self.configs), len(self.configs) + len(siblings))))
            stem = kinds.setdefault(traits_of(each.configs[0]).stem, len(kinds))
            for group in siblings.values():
                usual, *others = sorted(group, key=from_usual) if len(group) > 1 else group
                self.configs.append(usual)
                self.others.append(others)
                unit.append(number)
                kind.append(stem)
        self.unit: Places = np.array(unit, dtype=np.int64)
        self.kind: Places = np.array(kind, dtype=np.int64)
        self.place = {config: row for row, config in enumerate(self.configs)}

    def first_of(self, number: int) -> Unit:
        """Return the unit of this number with only the configs of its rows, which have the usual GROUP_SIZE_M."""
        return Unit(tuple(self.configs[row] for row in self.of_unit[number]))
