"""RecordedProblem: what was measured of one problem in one run, as records: for models of time, and for replays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome, Resources
from genkern.recorded.columns import NEEDS
from genkern.recorded.making import compiled
from genkern.search.strategy import Unit


@dataclass(frozen=True, eq=False)
class RecordedProblem:
    """Every config of a problem that a run measured or refused, in the order of their space.

    `names`, `configs`, `outcomes` and `keys` (of binaries) are parallel, and so are the `columns`: numbers by name of
    the column (genkern.recorded.columns), float64 where a null is NaN. `whole` says whether the whole space has
    outcomes. `copies` has, of configs that ended as identical, those of which they are copies. `wrong` are the configs
    whose output was found wrong, `library_us` times of the finals in microseconds by name of a library's call.
    """

    problem: GemmProblem
    gpu: Gpu
    run: str
    whole: bool
    names: tuple[str, ...]
    configs: tuple[Config, ...]
    outcomes: tuple[Outcome, ...]
    keys: tuple[str | None, ...]
    columns: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
    copies: Mapping[Config, Config]
    wrong: frozenset[Config]
    library_us: Mapping[str, float]

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Configs that share binaries, in the order of the first of each."""
        return tuple(Unit(tuple(self.configs[row] for row in rows)) for rows in self.unit_rows)

    @cached_property
    def unit_rows(self) -> tuple[tuple[int, ...], ...]:
        """Of each unit the places of its configs."""
        found: dict[Hashable, list[int]] = {}
        for row, name in enumerate(self.names):
            found.setdefault(compiled(name), []).append(row)
        return tuple(map(tuple, found.values()))

    @cached_property
    def us(self) -> dict[Config, float]:
        """Microseconds of a call by the first measurement, of the configs that have it."""
        return self._by_config("screen_us")

    @cached_property
    def final_us(self) -> dict[Config, float]:
        """Microseconds of a call in the finals, of the configs that were in them."""
        return self._by_config("final_us")

    @cached_property
    def took_ms(self) -> dict[Config, float]:
        """Wall milliseconds that the first measurement took, of the configs of which that is known."""
        return self._by_config("took_ms")

    @cached_property
    def compile_s(self) -> dict[Unit, float]:
        """Seconds of the compile, of the units of which that is known."""
        seconds = self._of_units("compile_s")
        return {unit: s for unit, s in zip(self.units, seconds, strict=True) if s == s}

    @cached_property
    def compiled_s(self) -> dict[Hashable, float]:
        """The same by what configs that share binaries have in common (genkern.farm.sharing)."""
        return {unit.compiled: seconds for unit, seconds in self.compile_s.items()}

    @cached_property
    def binaries(self) -> dict[Config, str]:
        """The first digits of the content address of what multiplies, of the configs that have a binary."""
        return {config: key for config, key in zip(self.configs, self.keys, strict=True) if key is not None}

    @cached_property
    def resources(self) -> dict[Unit, Resources]:
        """What the binary needs of the hardware, of the units that have one."""
        needs = {column.name: self._of_units(column.name) for column in NEEDS}
        found = {}
        for unit, values in zip(self.units, zip(*needs.values(), strict=True), strict=True):
            known: dict[str, Any] = {name: int(n) for name, n in zip(needs, values, strict=True) if n == n}
            if known:
                found[unit] = Resources(**known)
        return found

    def _by_config(self, column: str) -> dict[Config, float]:
        values: Sequence[float] = self.columns[column].tolist()
        return {config: value for config, value in zip(self.configs, values, strict=True) if value == value}

    def _of_units(self, column: str) -> list[float]:
        """Of each unit the value of any of its configs; NaN where none has one."""
        values: Sequence[float] = self.columns[column].tolist()
        of = ((values[row] for row in rows) for rows in self.unit_rows)
        return [next((value for value in each if value == value), float("nan")) for each in of]
