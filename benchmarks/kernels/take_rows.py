"""Rows of one results file in the places of those of the same problems in others: what was raced again, to the letter.

    python -m benchmarks.kernels.take_rows AGAIN.yaml results/nvidia_h200/*_bf16.yaml

A list that holds the slow sizes of several results files is tuned as one (`genkern --all`), and its rows go back to
where they came from. Nothing is added, and what was not raced again stays as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common.workbench import errors_end
from genkern.errors import ResultsError
from genkern.files import write_whole
from genkern.formats.kind import read_results

ROW = "- "


def keyed_lines(path: str) -> Iterator[tuple[object, str]]:
    """Each line of a results file, with the problem and device of its row; None for what is no row.

    Raises ResultsError for a file whose rows are not a line each, as genkern writes them.
    """
    rows, lines = read_results(path), Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    if len(rows) != sum(line.startswith(ROW) for line in lines):
        raise ResultsError(f"{path}: a row is not a line here: only results that genkern wrote as YAML can be renewed")
    found = iter(rows)
    for line in lines:
        row = next(found) if line.startswith(ROW) else None
        yield row and (row.problem, row.arch, row.device, row.compute_units), line


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("again", help="results of what was raced again")
    parser.add_argument("results", nargs="+", help="results files to renew")
    arguments = parser.parse_args(argv)
    with errors_end():
        again = {key: line for key, line in keyed_lines(arguments.again) if key}
        renewed = {path: list(keyed_lines(path)) for path in arguments.results}
    for path, lines in renewed.items():
        write_whole(path, "".join(again.get(key, line) if key else line for key, line in lines))
        print(f"{path}: {sum(key in again for key, _ in lines)} of {sum(bool(key) for key, _ in lines)} rows")
    nowhere = again.keys() - {key for lines in renewed.values() for key, _ in lines}
    if nowhere:
        print(f"{len(nowhere)} rows of {arguments.again} are of problems that none of these files has")


if __name__ == "__main__":
    main(sys.argv[1:])
