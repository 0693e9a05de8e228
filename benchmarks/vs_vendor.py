"""Tuned results against the vendor library, from the times that one run took of both, round by round.

    python benchmarks/vs_vendor.py results/nvidia_h200/anchors_bf16.yaml

A table of sizes and one of geometric means by M for each file. Of several files, whose sizes may be the same, a last
table has each distinct size once, as the last file has it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence

from genkern.errors import GenkernError, ResultsError
from genkern.formats.tune_gemm_yaml import read_winners
from genkern.formats.tuned_row import TunedRow


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def compared(rows: Iterable[TunedRow]) -> list[tuple[TunedRow, float]]:
    """The rows with a time of both sides, and the library's over genkern's, by M, N and K."""
    both = [(row, row.vendor_us / row.duration_us) for row in rows if row.duration_us and row.vendor_us]
    return sorted(both, key=lambda pair: (pair[0].problem.M, pair[0].problem.N, pair[0].problem.K))


def table(rows: Iterable[TunedRow]) -> str:
    """Markdown: one line a size, then what `means` has."""
    lines = ["| M | N | K | genkern us | vendor us | vendor / genkern | config |", "|---|---|---|---|---|---|---|"]
    both = compared(rows)
    for row, ratio in both:
        p, us, vendor_us = row.problem, row.duration_us, row.vendor_us
        lines.append(f"| {p.M} | {p.N} | {p.K} | {us:.2f} | {vendor_us:.2f} | {ratio:.3f} | {row.config.name} |")
    return "\n".join([*lines, "", means(both)])


def means(both: Iterable[tuple[TunedRow, float]]) -> str:
    """Markdown: geometric mean, least and most by M and over all."""
    ratios: dict[int, list[float]] = {}
    for row, ratio in both:
        ratios.setdefault(row.problem.M, []).append(ratio)
    lines = ["| M | sizes | geomean | least | most |", "|---|---|---|---|---|"]
    every = [ratio for group in ratios.values() for ratio in group]
    for name, group in [*((str(m), group) for m, group in sorted(ratios.items())), ("all", every)]:
        lines.append(f"| {name} | {len(group)} | {geomean(group):.3f} | {min(group):.3f} | {max(group):.3f} |")
    return "\n".join(lines)


def main(paths: Sequence[str]) -> None:
    if not paths:
        raise SystemExit(f"usage: {__doc__}")
    distinct = {}
    for path in paths:
        rows = read_winners(path)
        if not compared(rows):
            raise ResultsError(f"{path}: no size has the vendor library's time; tune again with a GPU")
        print(f"{path}\n\n{table(rows)}\n")
        distinct |= {row.problem: row for row in rows}
    if len(paths) > 1:
        print(f"{len(paths)} files, each distinct size once\n\n{means(compared(distinct.values()))}\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except GenkernError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
