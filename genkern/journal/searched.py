"""What a search asked and was told, step by step, as it stands in a journal: enough to decide it once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genkern.gemm.config import Config
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.batch import restored, shortened
from genkern.search.strategy import Compiled, Event, Lost, Measured, Refused, Unit

# By the first letter of a step, what happened.
_ASKED, _COMPILED, _REFUSED, _MEASURED, _LOST, _DROPPED = "acrmld"


@dataclass(frozen=True)
class Asked:
    """A strategy was asked for at most `n` units, and named these."""

    n: int
    units: tuple[Unit, ...]


@dataclass(frozen=True)
class Told:
    """A strategy was told of an event, and wanted these units no more."""

    event: Event
    dropped: tuple[Unit, ...] = ()


Step = Asked | Told


@dataclass(frozen=True)
class Searched:
    """The search of one size: what the strategy of this name had to search, as in its Task, and every step.

    `cached` are the units that needed no compile, of those that it asked about.
    """

    strategy: str
    patience: int
    best_us: float | None
    configs: tuple[Config, ...]
    cached: tuple[Unit, ...]
    steps: tuple[Step, ...]

    @property
    def asked(self) -> list[Unit]:
        """Every unit that was asked for, in that order."""
        return [unit for step in self.steps if isinstance(step, Asked) for unit in step.units]


def value_of(searched: Searched) -> dict[str, Any]:
    """As JSON values. Configs are numbers, by their place in `config`, where those stand last that were no strategy's;
    times are those of the journal's measurements."""
    places = {config.name: place for place, config in enumerate(searched.configs)}
    binaries: dict[str, int] = {}

    def place(config: Config) -> int:
        return places.setdefault(config.name, len(places))

    def unit(of: Unit) -> list[int]:
        return [place(config) for config in of.configs]

    def told(event: Event) -> list[Any]:
        if isinstance(event, Compiled):
            number = binaries.setdefault(event.binary, len(binaries))
            return [_COMPILED, unit(event.unit), number, int(event.cached)]
        if isinstance(event, Refused):
            return [_REFUSED, unit(event.unit), [place(config) for config in event.configs], event.outcome.value]
        if isinstance(event, Measured):
            return [_MEASURED, place(event.config)]
        return [_LOST, place(event.config), event.outcome.value]

    steps: list[list[Any]] = []
    for step in searched.steps:
        if isinstance(step, Asked):
            steps.append([_ASKED, step.n, [unit(each) for each in step.units]])
        else:
            steps.append(told(step.event))
            steps.extend([_DROPPED, unit(each)] for each in step.dropped)
    return {
        "strategy": searched.strategy,
        "patience": searched.patience,
        "best_us": searched.best_us,
        "configs": len(searched.configs),
        "cached": [unit(each) for each in searched.cached],
        "steps": steps,
        # The steps have found those that are not among the strategy's.
        "config": shortened(places),
    }


def searched_of(value: Mapping[str, Any], screened: Mapping[str, Measurement]) -> Searched:
    """The search whose `value_of` this is, with the times of these measurements. Raises ValueError, LookupError,
    TypeError or AttributeError."""
    names = restored(value["config"])
    configs = [Config.parse(name) for name in names]

    def unit(places: Sequence[int]) -> Unit:
        return Unit(tuple(configs[place] for place in places))

    def event(kind: str, of: Sequence[Any]) -> Event:
        if kind == _COMPILED:
            return Compiled(unit(of[0]), str(of[1]), bool(of[2]))
        if kind == _REFUSED:
            return Refused(unit(of[0]), unit(of[1]).configs, Outcome(of[2]))
        if kind == _LOST:
            return Lost(configs[of[0]], Outcome(of[1]))
        if kind == _MEASURED and (us := screened[names[of[0]]].duration_us) is not None:
            return Measured(configs[of[0]], us)
        raise ValueError(kind)

    steps: list[Step] = []
    for kind, *of in value["steps"]:
        if kind == _ASKED:
            steps.append(Asked(of[0], tuple(map(unit, of[1]))))
        elif kind == _DROPPED and isinstance(last := steps[-1], Told):
            steps[-1] = Told(last.event, (*last.dropped, unit(of[0])))
        else:
            steps.append(Told(event(kind, of)))
    known = value["strategy"], value["patience"], value["best_us"]
    return Searched(*known, tuple(configs[: value["configs"]]), tuple(map(unit, value["cached"])), tuple(steps))
