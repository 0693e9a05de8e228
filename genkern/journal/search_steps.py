"""The steps of a search, as stored in a journal.

They hold what the strategy was asked and told, which is enough to replay its decisions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from genkern.gemm.config import Config
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.batch import restored, shortened
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Unit

# First element of a step in a journal.
_ASKED, _COMPILED, _REFUSED, _MEASURED, _LOST, _DROPPED = "acrmld"


@dataclass(frozen=True)
class AskStep:
    """A strategy was asked for at most `n` units and returned these."""

    n: int
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class TellStep:
    """A strategy was told of an event, and then dropped these units."""

    event: Event
    dropped: tuple[Unit, ...] = ()


Step = AskStep | TellStep


@dataclass(frozen=True)
class SearchRecord:
    """The search of one size.

    strategy, number: name and number of the strategy
    configs: the configs to search
    cached: one config of each unit that needed no compile, among those that the strategy asked about
    steps: every step
    most: as in the strategy's Task
    """

    strategy: str
    number: int | None
    configs: tuple[Config, ...]
    cached: tuple[Config, ...]
    steps: tuple[Step, ...]
    most: int | None = None

    @property
    def asked(self) -> list[Unit]:
        """Every unit that was asked for, in order."""
        return [unit for step in self.steps if isinstance(step, AskStep) for unit in step.units]

    @property
    def refused(self) -> dict[str, Outcome]:
        """Why configs were no candidates, by config name."""
        events = (step.event for step in self.steps if isinstance(step, TellStep))
        told = (event for event in events if isinstance(event, Refused))
        return {config.name: event.outcome for event in told for config in event.configs}


def search_value(searched: SearchRecord) -> dict[str, Any]:
    """Return the search as compact JSON values, in which expected values are omitted.

    `config` has the names of the strategy's configs, then of others. `units` has the indices of each unit's configs in
    `config`, as differences, in the order in which units first appear in the steps.

    In `steps`, "a" is followed by the number of units asked for and the number returned, "c" by whether the unit was
    cached, "r" by the outcome, "m" by the number of configs measured, "l" by the number lost and the outcome; "d" drops
    a unit. A number follows if it is not the next unit, not a new binary, or not the next config. Times are stored in
    the journal's measurements.
    """
    writer = _Writer(searched.configs)
    for step in searched.steps:
        if isinstance(step, AskStep):
            before = len(writer.units)
            numbers = [writer.unit(unit) for unit in step.units]
            new = list(range(before, before + len(numbers)))
            writer.steps.append([_ASKED, step.n, len(numbers), *([] if numbers == new else [numbers])])
        else:
            writer.told(step.event)
            writer.steps.extend([_DROPPED, writer.unit(unit)] for unit in step.dropped)
    cached = [writer.place(config) for config in searched.cached]
    return {
        "strategy": searched.strategy,
        "number": searched.number,
        "most": searched.most,
        "configs": len(searched.configs),
        "steps": writer.steps,
        "cached": _differences(cached),
        "units": [_differences(places) for places in writer.units],
        "config": shortened(writer.places),
    }


def parse_search(value: Mapping[str, Any], screened: Mapping[str, Measurement]) -> SearchRecord:
    """Return the search of a `search_value`, with the times of these measurements.

    Raises ValueError, LookupError, TypeError or AttributeError.
    """
    names = restored(value["config"])
    configs = [parsed(name) for name in names]
    units = [Unit(tuple(configs[place] for place in _sums(each))) for each in value["units"]]
    reader = _Reader(units, screened)
    for step in value["steps"]:
        reader.read(*step)
    # Earlier journals have a single number, `patience`, which is 0 if there was none.
    number = value["number"] if "number" in value else value["patience"] or None
    cached = tuple(configs[place] for place in _sums(value["cached"]))
    searched = tuple(configs[: value["configs"]])
    return SearchRecord(value["strategy"], number, searched, cached, tuple(reader.steps), value.get("most"))


@lru_cache(maxsize=2**17)
def parsed(name: str) -> Config:
    """Return the config of a name; cached, since the spaces of many problems share configs. Raises InputError."""
    return Config.parse(name)


def names_of(value: Mapping[str, Any]) -> list[str]:
    """Return the names of all configs in a search's value, first those that were to be searched.

    Other values are not read.
    """
    return restored(value["config"])


class _Writer:
    def __init__(self, configs: Sequence[Config]) -> None:
        self.places = {config.name: place for place, config in enumerate(configs)}
        self.units: list[list[int]] = []
        self.steps: list[list[Any]] = []
        self._numbers: dict[tuple[Config, ...], int] = {}
        # Index of each config in the concatenation of all units.
        self._launches: dict[Config, int] = {}
        self._count = 0
        self._binaries: dict[str, int] = {}
        self._next_unit = self._next_launch = 0

    def place(self, config: Config) -> int:
        return self.places.setdefault(config.name, len(self.places))

    def unit(self, unit: Unit) -> int:
        if (number := self._numbers.get(unit.configs)) is None:
            number = self._numbers[unit.configs] = len(self.units)
            self.units.append([self.place(config) for config in unit.configs])
            for place, config in enumerate(unit.configs, self._count):
                self._launches.setdefault(config, place)
            self._count += len(unit.configs)
        return number

    def told(self, event: Event) -> None:
        if isinstance(event, Compiled | Refused):
            number = self.unit(event.unit)
            if isinstance(event, Compiled):
                new = len(self._binaries)
                binary = self._binaries.setdefault(event.binary, new)
                usual = (number, binary) == (self._next_unit, new)
                self.steps.append([_COMPILED, int(event.cached), *([] if usual else [number, binary])])
            else:
                which = [self._launches[config] for config in event.configs]
                self.steps.append([_REFUSED, event.outcome.value, number, _differences(which)])
            self._next_unit = number + 1
            return
        if event.config not in self._launches:
            # An earlier start measured a config that this one did not ask for.
            self.unit(Unit((event.config,)))
        launch = self._launches[event.config]
        what = [_MEASURED, 1] if isinstance(event, Measured) else [_LOST, 1, event.outcome.value]
        last: list[Any] = self.steps[-1] if self.steps else [""]
        if launch != self._next_launch:
            self.steps.append([*what, launch])
        elif last[0] == what[0] and last[2 : len(what)] == what[2:]:
            last[1] += 1
        else:
            self.steps.append(what)
        self._next_launch = launch + 1


class _Reader:
    def __init__(self, units: Sequence[Unit], screened: Mapping[str, Measurement]) -> None:
        self.steps: list[Step] = []
        self._units = units
        self._launches = [config for unit in units for config in unit.configs]
        self._of_launch = [number for number, unit in enumerate(units) for _ in unit.configs]
        self._screened = screened
        self._seen = self._next_unit = self._next_launch = self._binaries = 0

    def read(self, kind: str, *of: Any) -> None:
        if kind == _ASKED:
            n, count, *others = of
            numbers = others[0] if others else range(self._seen, self._seen + count)
            self.steps.append(AskStep(n, tuple(self._units[self._see(number)] for number in numbers)))
        elif kind == _COMPILED:
            cached, *other = of
            number, binary = other or (self._next_unit, self._binaries)
            self._binaries = max(self._binaries, binary + 1)
            self._tell(Compiled(self._made(number), str(binary), bool(cached)))
        elif kind == _REFUSED:
            outcome, number, which = of
            configs = tuple(self._launches[launch] for launch in _sums(which))
            self._tell(Refused(self._made(number), configs, Outcome(outcome)))
        elif kind == _DROPPED:
            last = self.steps[-1]
            if not isinstance(last, TellStep):
                raise ValueError(kind)
            self.steps[-1] = TellStep(last.event, (*last.dropped, self._units[of[0]]))
        else:
            self._launched(kind, *of)

    def _launched(self, kind: str, count: int, *of: Any) -> None:
        lost = Outcome(of[0]) if kind == _LOST else None
        first = of[lost is not None] if len(of) > (lost is not None) else self._next_launch
        for launch in range(first, first + count):
            config = self._launches[launch]
            self._see(self._of_launch[launch])
            if lost is not None:
                self._tell(Lost(config, lost))
            elif kind == _MEASURED and (us := self._screened[config.name].duration_us) is not None:
                self._tell(Measured(config, us))
            else:
                raise ValueError(kind)
        self._next_launch = first + count

    def _see(self, number: int) -> int:
        self._seen = max(self._seen, number + 1)
        return number

    def _made(self, number: int) -> Unit:
        self._next_unit = self._see(number) + 1
        return self._units[number]

    def _tell(self, event: Event) -> None:
        self.steps.append(TellStep(event))


def _differences(numbers: Sequence[int]) -> list[int]:
    return [number - before for number, before in zip(numbers, [0, *numbers], strict=False)]


def _sums(differences: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(differences))
