"""Tuned results against the vendor library, from the times that one run took of both, round by round.

    python benchmarks/vs_vendor.py results/nvidia_h200/anchors_bf16.yaml

A table of sizes and one of geometric means by M for each file. Of several files, whose sizes may be the same, a last
table has each distinct size once, as the last file has it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence

from figures import geomean, table
from workbench import errors_end

from genkern.errors import ResultsError
from genkern.formats.kind import read_results
from genkern.formats.tuned_row import TunedRow


def ratios(rows: Iterable[TunedRow]) -> list[tuple[TunedRow, float]]:
    """The rows with a time of both sides, and the library's over genkern's, by M, N and K."""
    both = [(row, row.vendor_us / row.duration_us) for row in rows if row.duration_us and row.vendor_us]
    return sorted(both, key=lambda pair: (pair[0].problem.M, pair[0].problem.N, pair[0].problem.K))


def sizes_table(compared: Iterable[tuple[TunedRow, float]]) -> str:
    """Markdown: one line a size."""
    cells = [
        (p.M, p.N, p.K, f"{row.duration_us:.2f}", f"{row.vendor_us:.2f}", f"{ratio:.3f}", row.config.name)
        for row, ratio in compared
        for p in (row.problem,)
    ]
    return table(("M", "N", "K", "genkern us", "vendor us", "vendor / genkern", "config"), cells)


def means_table(compared: Iterable[tuple[TunedRow, float]]) -> str:
    """Markdown: geometric mean, least and most by M and over all."""
    groups: dict[object, list[float]] = {}
    for row, ratio in compared:
        groups.setdefault(row.problem.M, []).append(ratio)
    groups["all"] = [ratio for group in groups.values() for ratio in group]
    cells = [
        (name, len(group), *(f"{value:.3f}" for value in (geomean(group), min(group), max(group))))
        for name, group in groups.items()
    ]
    return table(("M", "sizes", "geomean", "least", "most"), cells)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", help="results files of genkern, YAML")
    paths = parser.parse_args(argv).results
    distinct = {}
    with errors_end():
        for path in paths:
            compared = ratios(read_results(path))
            if not compared:
                raise ResultsError(f"{path}: no size has the vendor library's time; tune again with a GPU")
            print(f"{path}\n\n{sizes_table(compared)}\n\n{means_table(compared)}\n")
            distinct |= {row.problem: row for row, _ in compared}
    if len(paths) > 1:
        print(f"{len(paths)} files, each distinct size once\n\n{means_table(ratios(distinct.values()))}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
