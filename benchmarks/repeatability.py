"""How well a tuning repeats: two tunings in processes of their own, and the first one's winners timed in a third.

    genkern -i SIZES.yaml -o A.yaml
    genkern -i SIZES.yaml -o B.yaml
    genkern --benchmark -i A.yaml -o BENCH.csv
    python benchmarks/repeatability.py A.yaml B.yaml BENCH.csv [-o FULL.jsonl]

Needs no GPU itself. Times of one size differ by `1 - small / large`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from figures import DataFile, median, summary, table
from workbench import errors_end

from genkern.formats.tune_gemm_yaml import read_winners
from genkern.formats.tuned_row import TunedRow

# What counts as the same time.
SAME = 0.02
# M, N, K and the layouts, as --benchmark writes them.
Key = tuple[int, int, int, str]


@dataclass(frozen=True)
class Repeat:
    """One size: the winner's time in A, that of the same config timed again, and B's winner with its time."""

    size: str
    a_config: str
    a_us: float
    again_us: float | None
    b_config: str | None
    b_us: float | None

    @property
    def again_differs(self) -> float | None:
        return None if self.again_us is None else difference(self.a_us, self.again_us)

    @property
    def b_differs(self) -> float | None:
        return None if self.b_us is None else difference(self.a_us, self.b_us)


def difference(one_us: float, other_us: float) -> float:
    """By what share two times differ, 0 to 1, whichever is the larger."""
    return 1 - min(one_us, other_us) / max(one_us, other_us)


def key_of(row: TunedRow) -> Key:
    p = row.problem
    return p.M, p.N, p.K, ("T" if p.row_major_a else "N") + ("T" if p.row_major_b else "N")


def read_times(lines: Iterable[str]) -> dict[Key, tuple[str, float]]:
    """Config and microseconds by size, from the CSV of --benchmark; sizes that did not run are not in it."""
    return {
        (int(row["M"]), int(row["N"]), int(row["K"]), row["trans"]): (row["config"], float(row["us"]))
        for row in csv.DictReader(lines)
        if row["us"]
    }


def compare(a: Sequence[TunedRow], b: Sequence[TunedRow], again: Mapping[Key, tuple[str, float]]) -> list[Repeat]:
    """One Repeat per size of A that has a time; a time counts as taken again only for the same config."""
    others = {row.problem: row for row in b}
    repeats = []
    for row in a:
        if row.duration_us is None:
            continue
        config, again_us = again.get(key_of(row), ("", 0.0))
        other = others.get(row.problem)
        repeats.append(
            Repeat(
                row.problem.size,
                row.config.name,
                row.duration_us,
                again_us if config == row.config.name else None,
                other.config.name if other else None,
                other.duration_us if other else None,
            )
        )
    return repeats


def report(repeats: Sequence[Repeat]) -> str:
    """Markdown: a line per size, then the figures over all."""
    rows = [
        (
            r.size,
            f"{r.a_us:.2f}",
            us(r.again_us),
            share(r.again_differs),
            us(r.b_us),
            share(r.b_differs),
            same_winner(r),
        )
        for r in repeats
    ]
    again = [r.again_differs for r in repeats if r.again_differs is not None]
    tuned = [r.b_differs for r in repeats if r.b_differs is not None]
    within = sum(value <= SAME for value in again)
    lines = [
        table(("size", "A us", "again us", "differs", "B us", "differs", "same winner"), rows),
        "",
        f"Winners of A timed again within {SAME:.0%}: {within} of {len(again)}."
        + (f" B's time differs from A's by {median(tuned):.2%} in the median." if tuned else ""),
        "",
        "| difference | sizes | median | p90 | most |\n|---|---|---|---|---|",
        f"| A's winner timed again | {len(again)} | {summary(again, '.2%')} |",
        f"| B's winner against A's | {len(tuned)} | {summary(tuned, '.2%')} |",
    ]
    return "\n".join(lines)


def us(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def same_winner(r: Repeat) -> str:
    return "-" if r.b_config is None else "yes" if r.b_config == r.a_config else "no"


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("a", help="results of the first tuning")
    parser.add_argument("b", help="results of the second")
    parser.add_argument("times", nargs="?", help="CSV of --benchmark of the first")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    arguments = parser.parse_args(argv)
    again: dict[Key, tuple[str, float]] = {}
    if arguments.times:
        with open(arguments.times, encoding="utf-8", newline="") as file:
            again = read_times(file)
    with errors_end():
        repeats = compare(read_winners(arguments.a), read_winners(arguments.b), again)
    data = DataFile(arguments.output)
    for repeat in repeats:
        data.add(asdict(repeat))
    print(report(repeats))


if __name__ == "__main__":
    main(sys.argv[1:])
