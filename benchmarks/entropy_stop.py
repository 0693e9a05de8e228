"""Would NVBench's entropy criterion end the finals earlier? Replays the raw samples of finished runs.

    python benchmarks/entropy_stop.py RESULTS.yaml.journal.previous ... [-o FULL.jsonl]

Needs no GPU itself. Each race is replayed up to the round at which it ended; there the leader and those tied with it
must have settled by their entropy, looked at where genkern looks at its own rules. What a choice costs is the median
over all the samples of the config that was ahead at the earlier end, over that of the one ahead at the real end.

Source: NVIDIA/nvbench, nvbench/detail/entropy_criterion.cxx: the entropy of all samples so far, as of exact values;
a line through its last values that rises by `max_angle` degrees at most (0.048, a bit per sample being 45), with an r2
of at least `min_r2` (0.36). It keeps the last 299 values and waits for no number of them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from figures import DataFile, geomean, table
from workbench import errors_end

from genkern.journal.facts import read_journal
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import estimate, tied

_LEAST_ROUNDS = 10
_EVERY = 5


@dataclass(frozen=True)
class Rule:
    """A variant: values within `bin_share` of the first sample are one (0: exact values), over `window` values.

    `whole` waits for a full window.
    """

    bin_share: float
    max_angle: float
    min_r2: float
    window: int
    whole: bool = True


NVBENCH = Rule(0.0, 0.048, 0.36, 299, whole=False)
RULES = (
    NVBENCH,
    *(Rule(share, 0.048, 0.36, 32) for share in (0.0, 0.005, 0.01, 0.02)),
    *(Rule(share, 0.5, 0.36, window) for share in (0.0025, 0.005, 0.01, 0.02) for window in (16, 20)),
    *(Rule(share, 1.0, 0.0, 16) for share in (0.0025, 0.005, 0.01, 0.02)),
)


@dataclass(frozen=True)
class Race:
    """The finals of one size: all samples in microseconds by name, one a round until a candidate drops out."""

    size: str
    samples_us: Mapping[str, Sequence[float]]

    @property
    def rounds(self) -> int:
        return max(map(len, self.samples_us.values()))


@dataclass(frozen=True)
class End:
    """When a rule ends a race, at its real end at the latest, and what the choice then costs (1: nothing)."""

    size: str
    rounds: int
    real_rounds: int
    cost: float


class Entropy:
    """The criterion for the samples of one candidate."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._counts: Counter[float] = Counter()
        self._bin_us = 0.0
        self._values: deque[float] = deque(maxlen=rule.window)

    def add(self, sample_us: float) -> None:
        self._bin_us = self._bin_us or sample_us * self._rule.bin_share
        self._counts[round(sample_us / self._bin_us) if self._bin_us else sample_us] += 1
        shares = [count / self._counts.total() for count in self._counts.values()]
        self._values.append(-sum(share * math.log2(share) for share in shares))

    @property
    def settled(self) -> bool:
        values, rule = self._values, self._rule
        if len(values) < (rule.window if rule.whole else 2):
            return False
        middle, mean = (len(values) - 1) / 2, fmean(values)
        xx = sum((i - middle) ** 2 for i in range(len(values)))
        xy = sum((i - middle) * (value - mean) for i, value in enumerate(values))
        yy = sum((value - mean) ** 2 for value in values)
        if math.degrees(math.atan(xy / xx)) > rule.max_angle:
            return False
        # A line that does not move is fitted exactly.
        return yy == 0 or xy * xy / (xx * yy) >= rule.min_r2


def replay(race: Race, rule: Rule) -> End:
    """Where `rule` ends the race."""
    entropies = {name: Entropy(rule) for name in race.samples_us}
    for number in range(1, race.rounds):
        racing = {name: samples[:number] for name, samples in race.samples_us.items() if len(samples) > number}
        for name, samples in racing.items():
            entropies[name].add(samples[-1])
        if number < _LEAST_ROUNDS or number % _EVERY:
            continue
        estimates = {name: estimate(samples) for name, samples in racing.items()}
        leader = min(estimates.values(), key=lambda e: e.median_us)
        if all(entropies[name].settled for name, e in estimates.items() if tied(e, leader)):
            return End(race.size, number, race.rounds, _cost(race, racing))
    return End(race.size, race.rounds, race.rounds, 1.0)


def _cost(race: Race, racing: Mapping[str, Sequence[float]]) -> float:
    last = {name: samples for name, samples in race.samples_us.items() if len(samples) == race.rounds}
    ahead, real = (_fastest(of) for of in (racing, last))
    return median(race.samples_us[ahead]) / median(race.samples_us[real]) if ahead and real else 1.0


def _fastest(samples_us: Mapping[str, Sequence[float]]) -> str:
    return min((name for name in samples_us if name != VENDOR), key=lambda name: median(samples_us[name]), default="")


def races(paths: Sequence[str]) -> Iterator[Race]:
    """Every size with finals in these journals."""
    for path in paths:
        for problem, facts in read_journal(path).facts.items():
            samples = {final.config: final.samples_us for final in facts.finals if final.samples_us}
            if samples:
                yield Race(problem.size, samples)


def report(ends: Mapping[Rule, Sequence[End]]) -> str:
    """Markdown: a line for each rule."""
    rows = []
    for rule, of_rule in ends.items():
        earlier = [end for end in of_rule if end.rounds < end.real_rounds]
        other = [end.cost for end in earlier if end.cost != 1]
        saved = sum(end.real_rounds - end.rounds for end in earlier)
        rows.append(
            [
                *(f"{rule.bin_share:.2%}" if rule.bin_share else "exact", f"{rule.max_angle:g}", f"{rule.min_r2:g}"),
                *(rule.window, f"{len(earlier)} of {len(of_rule)}"),
                f"{saved} of {sum(end.real_rounds for end in of_rule)}",
                len(other),
                f"{geomean([end.cost for end in earlier]):.4f} ({max(end.cost for end in earlier):.4f})"
                if earlier
                else "-",
            ]
        )
    columns = ("values", "angle", "r2", "window", "ends earlier", "rounds saved", "other choice", "cost (worst)")
    return table(columns, rows)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", help="journals of runs with measured times")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    arguments = parser.parse_args(argv)
    with errors_end():
        found = list(races(arguments.journals))
    data = DataFile(arguments.output)
    ends: dict[Rule, list[End]] = {}
    for rule in RULES:
        ends[rule] = [replay(race, rule) for race in found]
        for end in ends[rule]:
            data.add({**asdict(rule), **asdict(end)})
    print(report(ends))


if __name__ == "__main__":
    main(sys.argv[1:])
