"""Shipped: the results files as they are to be, and made.csv, which says of each what made its rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results.remade import Line, as_csv, lines_of
from benchmarks.results.wanted import Wanted
from genkern.errors import ResultsError
from genkern.file_io import read_text, write_whole
from genkern.files.file_kind import kind_of, read_results
from genkern.gemm.problem import GemmProblem

MADE = "made.csv"
COLUMNS = "file", "rows", "commits", "dates", "command", "remark"
# The command of what is made here, by the name that provenance.yaml has for it.
COMMAND = "remake"


@dataclass(frozen=True)
class Written:
    """What one writing did: files that are now as `remade` has them, and of those that are not, how many sizes lack."""

    written: tuple[str, ...]
    lacking: Mapping[str, int]


def write_shipped(wanted: Wanted, remade: Mapping[GemmProblem, Line], partly: bool = False) -> Written:
    """Write each results file whose sizes are all in `remade`, whole, and its line of made.csv.

    With `partly` also those of which some are: the others keep the row that they have, if any. Rows of older kernels,
    in older/, go where their sizes have new ones. Raises OutputError, and ResultsError for a file that is damaged.
    """
    made = read_made(wanted.folder)
    written: list[str] = []
    lacking = {}
    today: set[GemmProblem] = set()
    for name, problems in wanted.files.items():
        new = {problem: remade[problem] for problem in problems if problem in remade}
        if len(new) < len(problems):
            lacking[name] = len(problems) - len(new)
            if not (partly and new):
                continue
        path = wanted.folder / name
        kept = _texts(path) if len(new) < len(problems) else {}
        texts = [new[p].text if p in new else kept[p] for p in problems if p in new or p in kept]
        write_whole(str(path), next(iter(new.values())).head + "".join(texts))
        before = made.get(name, {}) if kept else {}
        made[name] = {
            "file": name,
            "rows": str(len(texts)),
            "commits": _joined(before.get("commits", ""), (line.commit for line in new.values())),
            "dates": _joined(before.get("dates", ""), (line.date for line in new.values())),
            "command": COMMAND,
            "remark": before.get("remark", ""),
        }
        written.append(name)
        today.update(new)
    if written:
        rows = [made[name] for name in wanted.files if name in made]
        rows += [row for name, row in made.items() if name not in wanted.files]
        write_whole(str(wanted.folder / MADE), as_csv(COLUMNS, rows))
        _drop_older(wanted.folder / "older", today)
    return Written(tuple(written), lacking)


def shipped_lines(wanted: Wanted) -> dict[GemmProblem, Line]:
    """The rows of files that were made here before, by size: with them what is done outlives its folder.

    Raises ResultsError for a file that is damaged.
    """
    found: dict[GemmProblem, Line] = {}
    for name, facts in read_made(wanted.folder).items():
        path = wanted.folder / name
        if facts["command"] == COMMAND and name in wanted.files and path.exists():
            lines = lines_of(path, wanted.device, facts["commits"], facts["dates"])
            found |= {line.row.problem: line for line in lines}
    return found


def read_made(folder: Path) -> dict[str, dict[str, str]]:
    """The lines of made.csv by file; none where there is no such file."""
    path = folder / MADE
    if not path.exists():
        return {}
    return {row["file"]: dict(row) for row in csv.DictReader(io.StringIO(read_text(str(path), ResultsError)))}


def _drop_older(folder: Path, today: Set[GemmProblem]) -> None:
    """Take the rows of these sizes out of the files of `folder`, and files that have no other."""
    for path in sorted(folder.glob("*.yaml")):
        texts = _texts(path)
        kept = [text for problem, text in texts.items() if problem not in today]
        if not kept:
            path.unlink()
        elif len(kept) < len(texts):
            head, _ = _split(path)
            write_whole(str(path), head + "".join(kept))


def _texts(path: Path) -> dict[GemmProblem, str]:
    """The rows of a file as they stand there, by size."""
    if not path.exists():
        return {}
    return _split(path)[1]


def _split(path: Path) -> tuple[str, dict[GemmProblem, str]]:
    """The head of a results file, and the text of each of its rows, by size."""
    rows = list(read_results(str(path)))
    head, texts = kind_of(str(path)).split(read_text(str(path), ResultsError), str(path), [row.line for row in rows])
    return head, {row.problem: text for row, text in zip(rows, texts, strict=True)}


def _joined(before: str, more: Iterable[str]) -> str:
    """What is said so far and what comes to it, each once, in the order of its first mention."""
    return " ".join(dict.fromkeys([*before.split(), *(word for each in more for word in each.split())]))
