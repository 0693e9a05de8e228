"""How well a tuning repeats: two tunings in processes of their own, the first one's winners racing in the second.

    genkern -i SIZES.yaml -o A.yaml
    cp A.yaml B.yaml
    genkern -i SIZES.yaml --all -o B.yaml --profile_file B.csv
    python -m benchmarks.timing.repeatability A.yaml B.yaml B.csv [-o FULL.jsonl]

Needs no GPU itself. Times of one size differ by `1 - small / large`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.common.figures import DataFile, median, summary, table
from benchmarks.common.workbench import errors_end
from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow

# What counts as the same time.
SAME = 0.02
# M, N, K, the layouts and the config's name, as --profile_file writes them.
Key = tuple[int, int, int, str, str]


@dataclass(frozen=True)
class Repeat:
    """One size: the winner's time in A, that of the same config in B's finals, and B's winner with its time."""

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
    return p.M, p.N, p.K, "NT"[p.row_major_a] + "NT"[p.row_major_b], row.config.name


def read_finals(lines: Iterable[str]) -> dict[Key, float]:
    """Microseconds of every finalist, from the CSV of --profile_file."""
    finals = {}
    for row in csv.DictReader(lines):
        if row["stage"] == "final" and row["us"]:
            size = int(row["M"]), int(row["N"]), int(row["K"])
            finals[(*size, row["rowMajorA"] + row["rowMajorB"], row["config"])] = float(row["us"])
    return finals


def compare(a: Sequence[TunedRow], b: Sequence[TunedRow], finals: Mapping[Key, float]) -> list[Repeat]:
    """One Repeat per size of A that has a time."""
    others = {row.problem: row for row in b}
    repeats = []
    for row in a:
        if row.duration_us is None:
            continue
        other = others.get(row.problem)
        repeats.append(
            Repeat(
                row.problem.size,
                row.config.name,
                row.duration_us,
                finals.get(key_of(row)),
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
    parser.add_argument("candidates", help="--profile_file of the second")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    arguments = parser.parse_args(argv)
    with errors_end(), open(arguments.candidates, encoding="utf-8", newline="") as file:
        repeats = compare(read_results(arguments.a), read_results(arguments.b), read_finals(file))
    data = DataFile(arguments.output)
    for repeat in repeats:
        data.add(asdict(repeat))
    print(report(repeats))


if __name__ == "__main__":
    main(sys.argv[1:])
