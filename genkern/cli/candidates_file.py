"""`CandidatesFile`: every candidate of every size with its outcome, as CSV (--profile_file)."""

from __future__ import annotations

import contextlib
import csv
import os
import secrets
import stat
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from genkern.errors import OutputError, ResultsError
from genkern.file_io import open_regular, require_writable, shown_path, write_whole
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.ops.fields import problem_cells
from genkern.tuning.tune import Report

if TYPE_CHECKING:
    import pandas as pd

_PROBLEM_COLUMNS = tuple(problem_cells(GemmProblem(1, 1, 1)))
COLUMNS = (
    *_PROBLEM_COLUMNS,
    *("config", "outcome", "us", "time_source", "stage", "samples"),
    *("registers", "spills", "shared_bytes", "scratch_bytes", "message"),
)


class CandidatesFile:
    """A CSV file with the columns `COLUMNS`.

    Opening it drops the rows of the sizes in `again`, and a last row that was cut short by a kill; other rows stay.
    Raises ResultsError if `path` holds something else, OutputError if it cannot be written.
    """

    def __init__(self, path: str, again: Collection[GemmProblem]) -> None:
        self.path = path
        with self._errors():
            if _has_content(path):
                self._drop({tuple(problem_cells(problem).values()) for problem in again})
            else:
                write_whole(path, ",".join(COLUMNS) + "\n")

    @classmethod
    def require(cls, path: str) -> None:
        """Raise the errors of opening `path`, without writing: called before any other work of a run."""
        file = cls.__new__(cls)
        file.path = path
        with file._errors():
            require_writable(path)
            if _has_content(path):
                with contextlib.closing(file._rows(os.path.realpath(path))) as rows:
                    next(rows, None)

    def append(self, report: Report) -> None:
        """Append the candidates of one size, fastest first. Raises OutputError."""
        text = candidate_text(report) if report.table is None else report.table
        with self._errors(), open(self.path, "a", encoding="utf-8") as file:
            file.write(text)

    def _drop(self, again: set[tuple[str, ...]]) -> None:
        target = os.path.realpath(self.path)
        temporary = f"{target}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            with open(temporary, "x", encoding="utf-8", newline="") as kept:
                writer = csv.writer(kept, lineterminator="\n")
                writer.writerow(COLUMNS)
                for row in self._rows(target):
                    if len(row) == len(COLUMNS) and tuple(row[: len(_PROBLEM_COLUMNS)]) not in again:
                        writer.writerow(row)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _rows(self, target: str) -> Generator[list[str], None, None]:
        with open(target, encoding="utf-8", newline="", opener=open_regular) as file:
            rows = csv.reader(file)
            try:
                if next(rows, None) != list(COLUMNS):
                    raise ResultsError(
                        f"{shown_path(self.path)} is not a list of candidates of this version of genkern: "
                        "give another --profile_file"
                    )
                yield from rows
            except (csv.Error, UnicodeDecodeError):
                raise ResultsError(
                    f"{shown_path(self.path)} is not text, or is damaged: give another --profile_file"
                ) from None

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OutputError:
            raise
        except OSError as error:
            raise OutputError(
                f"cannot write {shown_path(self.path)} ({error.strerror}); free space or give another --profile_file"
            ) from None


def candidate_text(report: Report) -> str:
    """Return the candidates of a problem as lines of the file."""
    return candidate_table(report).to_csv(index=False, header=False)


def condensed(report: Report, *, with_candidates: bool) -> Report:
    """Return a report reduced to what another process needs: candidates as text, if any, and the records that messages
    use."""
    table = candidate_text(report) if with_candidates else ""
    wrong = Outcome.WRONG, Outcome.UNCHECKED
    told = {name: m for name, m in report.candidates.items() if m.outcome in wrong or m.usual_mhz is not None}
    return replace(report, pruned=None, candidates=told, binaries={}, table=table)


def candidate_table(report: Report) -> pd.DataFrame:
    """Return one row per candidate of a problem, fastest first, with the columns `COLUMNS`; pruned configs have
    none."""
    import pandas as pd  # takes half a second to import

    rows: list[dict[str, object]] = []
    problem = problem_cells(report.problem)
    for name, m in report.candidates.items():
        resources = report.binaries[name].resources if name in report.binaries else None
        rows.append(
            {
                **problem,
                "config": name,
                "outcome": m.outcome.said_of(m.time_source),
                "us": m.duration_us,
                "time_source": m.time_source,
                "stage": m.stage,
                "samples": len(m.samples_us),
                "registers": resources and resources.registers,
                "spills": resources and resources.spills,
                "shared_bytes": resources and resources.shared_bytes,
                "scratch_bytes": resources and resources.scratch_bytes,
                "message": " ".join(m.message.split()),
            }
        )
    rows.sort(key=lambda row: (row["us"] is None, row["us"] or 0.0, str(row["config"])))
    # dtype object: a column with gaps would otherwise turn integers into floats.
    table: pd.DataFrame = pd.DataFrame({column: [row[column] for row in rows] for column in COLUMNS}, dtype=object)
    return table


def _has_content(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = Path(path).stat()
        return stat.S_ISREG(status.st_mode) and status.st_size > 0
    return False
