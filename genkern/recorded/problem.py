"""RecordedProblem: the measurements of one problem in one run, for models of time and for replays."""

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
from genkern.recorded.from_journal import compiled
from genkern.search.strategy import Unit


@dataclass(frozen=True, eq=False)
class RecordedProblem:
    """Every config of a problem that a run measured or refused, in the order of the space.

    problem: the problem
    gpu: the GPU
    run: name of the run
    whole: True if every config of the space has an outcome
    names, configs, outcomes, keys: parallel; `keys` are digits of the binaries' content addresses
    columns: parallel to them, float64 with NaN for null, by column name (genkern.recorded.columns)
    copies: for configs that ended as identical, the configs that they equal
    wrong: configs whose output was wrong
    library_us: microseconds in the finals, by name of the library call
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
        """Configs that share binaries, in the order of each unit's first config."""
        return tuple(Unit(tuple(self.configs[row] for row in rows)) for rows in self.unit_rows)

    @cached_property
    def unit_rows(self) -> tuple[tuple[int, ...], ...]:
        """Indices of each unit's configs."""
        found: dict[Hashable, list[int]] = {}
        for row, name in enumerate(self.names):
            found.setdefault(compiled(name), []).append(row)
        return tuple(map(tuple, found.values()))

    @cached_property
    def us(self) -> dict[Config, float]:
        """Microseconds of a call in the first measurement, for configs that have one."""
        return self._by_config("screen_us")

    @cached_property
    def final_us(self) -> dict[Config, float]:
        """Microseconds of a call in the finals, for configs that took part."""
        return self._by_config("final_us")

    @cached_property
    def took_ms(self) -> dict[Config, float]:
        """Wall milliseconds of the first measurement, for configs for which they are known."""
        return self._by_config("took_ms")

    @cached_property
    def compile_s(self) -> dict[Unit, float]:
        """Seconds of the compile, for units for which they are known."""
        seconds = self._of_units("compile_s")
        return {unit: s for unit, s in zip(self.units, seconds, strict=True) if s == s}

    @cached_property
    def compiled_s(self) -> dict[Hashable, float]:
        """Seconds of the compile, by the key that configs with the same binaries share
        (genkern.compile.binary_groups).
        """
        return {unit.compiled: seconds for unit, seconds in self.compile_s.items()}

    @cached_property
    def binaries(self) -> dict[Config, str]:
        """First digits of the main binary's content address, for configs that have a binary."""
        return {config: key for config, key in zip(self.configs, self.keys, strict=True) if key is not None}

    @cached_property
    def resources(self) -> dict[Unit, Resources]:
        """What the binary needs of the hardware, for units that have one."""
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
        """Return for each unit the value of any of its configs; NaN if none has one."""
        values: Sequence[float] = self.columns[column].tolist()
        of = ((values[row] for row in rows) for rows in self.unit_rows)
        return [next((value for value in each if value == value), float("nan")) for each in of]
