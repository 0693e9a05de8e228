"""Charges: what compiling and measuring is to cost where that was not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from genkern.gemm.config import Config
from genkern.recorded.problem import RecordedProblem
from genkern.search.strategy import Unit


@dataclass(frozen=True)
class Charges:
    """Medians of what was recorded: seconds of a compile, by family, and milliseconds of a measurement.

    A family of which nothing is known is charged as the slowest that is known, so that nobody gains by preferring it.
    `compiles_unknown` and `measurements_unknown` are the shares of which nothing was recorded; where nothing was of
    any, the median is 0.
    """

    compile_s: Mapping[str, float]
    slowest_s: float
    took_ms: float
    compiles_unknown: float
    measurements_unknown: float

    def of_compile_s(self, recorded: RecordedProblem, unit: Unit) -> float:
        """Seconds of the compile of a unit, by its binaries."""
        if (seconds := recorded.compiled_s.get(unit.compiled)) is not None:
            return seconds
        return self.compile_s.get(unit.configs[0].family, self.slowest_s)

    def of_measurement_s(self, recorded: RecordedProblem, config: Config) -> float:
        """Seconds of the first measurement of a config."""
        return recorded.took_ms.get(config, self.took_ms) / 1000


def charges_of(problems: Iterable[RecordedProblem]) -> Charges:
    """The medians of these problems."""
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
    return Charges(
        compile_s,
        max(compile_s.values(), default=0.0),
        median(took_ms) if took_ms else 0.0,
        1 - sum(map(len, by_family.values())) / max(units, 1),
        1 - timed_known / max(timed, 1),
    )
