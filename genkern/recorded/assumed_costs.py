"""Charges: assumed costs of compiling and measuring if they were not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from genkern.gemm.config import Config
from genkern.recorded.problem import RecordedProblem
from genkern.search.strategy import Unit


@dataclass(frozen=True)
class AssumedCosts:
    """Medians of the recorded costs.

    compile_s: seconds of a compile, by family
    slowest_s: the slowest of these, charged for a family without records, so that a strategy gains nothing by
        preferring it
    took_ms: milliseconds of a measurement; 0 if none was recorded
    compiles_unknown, measurements_unknown: shares of compiles and measurements without recorded costs
    """

    compile_s: Mapping[str, float]
    slowest_s: float
    took_ms: float
    compiles_unknown: float
    measurements_unknown: float

    def of_compile_s(self, recorded: RecordedProblem, unit: Unit) -> float:
        """Return the recorded seconds of a unit's compile, or else the median of its family."""
        if (seconds := recorded.compiled_s.get(unit.compiled)) is not None:
            return seconds
        return self.compile_s.get(unit.configs[0].family, self.slowest_s)

    def of_measurement_s(self, recorded: RecordedProblem, config: Config) -> float:
        """Return the recorded seconds of a config's first measurement, or else the median."""
        return recorded.took_ms.get(config, self.took_ms) / 1000


def assumed_costs_of(problems: Iterable[RecordedProblem]) -> AssumedCosts:
    """Return the medians of the costs that these problems recorded."""
    by_family: dict[str, list[float]] = {}
    took_ms: list[float] = []
    units = timed = timed_known = 0
    for problem in problems:
        for unit, seconds in problem.compile_s.items():
            by_family.setdefault(unit.configs[0].family, []).append(seconds)
        took_ms += problem.took_ms.values()
        units, timed = units + len(problem.units), timed + len(problem.us)
        timed_known += len(problem.us.keys() & problem.took_ms.keys())
    compile_s = {family: median(each) for family, each in by_family.items()}
    return AssumedCosts(
        compile_s,
        max(compile_s.values(), default=0.0),
        median(took_ms) if took_ms else 0.0,
        1 - sum(map(len, by_family.values())) / max(units, 1),
        1 - timed_known / max(timed, 1),
    )
