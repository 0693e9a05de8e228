"""Rows of results that are of other kernels than genkern generates today, told without a GPU.

    python -m benchmarks.results.ages results/nvidia_h200/*.yaml [--some]

A row says by `source` which program was measured; one that does not is of before rows said so. Each row takes some
12 ms; with --some one row of each format and kind of kernel is looked at, which tells that a template has changed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from benchmarks.common.workbench import errors_end
from genkern.files.file_kind import read_results
from genkern.files.results import source_today
from genkern.kernels.catalogue import traits_of
from genkern.result.result import Result


@lru_cache(maxsize=4096)
def is_older(row: Result) -> bool:
    """Whether genkern does not generate any more what was measured, or nobody knows; a library's rows have no age."""
    return row.is_genkerns and (not row.source or row.source != source_today(row))


def ages(
    paths: Iterable[Path],
    some: bool = False,
    read: Callable[[Path], Sequence[Result]] = lambda p: read_results(str(p)),
) -> list[str]:
    """A line for each file with older rows: how many of those that were looked at, and which is the first.

    With `some` the first row of each format and kind of kernel is looked at, whichever file it is in.
    """
    lines = []
    kinds: set[tuple[str, str, bool]] = set()
    for path in paths:
        rows = read(path)
        if some:
            firsts = {_kind(row): row for row in reversed(rows) if _kind(row) not in kinds}
            kinds |= firsts.keys()
            rows = list(firsts.values())[::-1]
        if older := [row for row in rows if is_older(row)]:
            first = older[0]
            name = first.config.name if first.config else ""
            why = "is of another kernel than today's" if first.source else "does not say of which kernel it is"
            counted = f"{len(older)} of {len(rows)} rows{' looked at' if some else ''}"
            lines.append(f"{path.name}: {counted}; {first.problem.op} {first.problem.size} ({name}) {why}")
    return lines


def _kind(row: Result) -> tuple[str, str, bool]:
    return row.problem.op, traits_of(row.config).stem if row.config else "", bool(row.source)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path, help="results files of genkern")
    parser.add_argument("--some", action="store_true", help="one row of each format and kind of kernel")
    options = parser.parse_args(argv)
    with errors_end():
        lines = ages(options.results, options.some)
    print("\n".join(lines) or "every row is of a kernel that genkern generates today")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
