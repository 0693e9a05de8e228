"""RunFiles: the files of one run, derived from the name of its results file; and the runs that a path names."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import OutputError, ResultsError
from genkern.file_io import is_stream, shown_path

# Bytes of a file name on every file system of Linux.
_MOST_NAME = 255
_JOURNAL = ".journal"
_FINISHED = ".journal.previous"
# Suffix of the results name for further passes of a run (--batch_invariant).
_ORDER = ".order"
_OF_ORDER = re.compile(rf"{re.escape(_ORDER)}[0-9]{{1,3}}\Z")
_MOST_ORDERS = 9


@dataclass(frozen=True)
class RunFiles:
    """The files of one run. They lie beside the file that `results` refers to: a link and its target are one run.

    `journal` exists while the run is unfinished, `finished_journal` afterwards, `lock` while the run is active.
    `bug_log` exists if genkern itself failed. `replaced_journal` is a free name for the journal of an unfinished run
    that another run replaces.
    """

    results: str

    @classmethod
    def named_by(cls, path: str) -> RunFiles:
        """Return the run whose results file or journal `path` is."""
        for suffix in (_FINISHED, _JOURNAL):
            path = path.removesuffix(suffix)
        return cls(path)

    def of_order(self, number: int) -> RunFiles:
        """Return the files of a further pass of the run, which has its own journal but the run's lock."""
        return RunFiles(f"{self.results}{_ORDER}{number}")

    @property
    def known(self) -> bool:
        """True if there is a trace of the run besides its results."""
        return self.journal.exists() or self.finished_journal.exists() or self.lock.exists()

    @property
    def journal(self) -> Path:
        return Path(self._file + _JOURNAL)

    @property
    def finished_journal(self) -> Path:
        return Path(self._file + _FINISHED)

    @property
    def replaced_journal(self) -> Path:
        numbers = itertools.chain([""], (f"_{number}" for number in itertools.count(2)))
        paths = (Path(f"{self.journal}.replaced{number}") for number in numbers)
        return next(path for path in paths if not path.exists())

    def require_room_for_names(self) -> None:
        """Raise OutputError if the longest name among these files would exceed the file system's limit."""
        longest = os.fsencode(f"{self.of_order(_MOST_ORDERS).journal.name}.replaced_99")
        if (over := len(longest) - _MOST_NAME) > 0:
            where = shown_path(self.results)
            raise OutputError(f"{where}: its name is {over} bytes too long for the files beside it; give a shorter -o")

    @property
    def bug_log(self) -> Path:
        # No file can lie beside a stream.
        return Path("genkern.bug.log" if is_stream(self.results) else f"{self._file}.bug.log")

    @property
    def lock(self) -> Path:
        return Path(f"{_OF_ORDER.sub('', self._file)}.lock")

    @property
    def _file(self) -> str:
        """The results path as it was given, or with all links resolved if it contains any."""
        file = os.path.realpath(self.results)
        return self.results if file == os.path.abspath(self.results) else file


def find_runs(path: str) -> list[RunFiles]:
    """Return the runs in a folder, or the run of a results file or journal followed by its further passes.

    Raises ResultsError if there are none.
    """
    where = Path(path)
    if where.is_dir():
        journals = (str(file) for suffix in (_JOURNAL, _FINISHED) for file in where.glob(f"*{suffix}"))
        runs = [RunFiles(name) for name in sorted({RunFiles.named_by(journal).results for journal in journals})]
        if not runs:
            raise ResultsError(f"{shown_path(path)} holds no journal of a run: name the results file (-o) of one")
        return runs
    run = RunFiles.named_by(path)
    if not run.known:
        what = "has no journal beside it" if where.exists() else "no such file"
        raise ResultsError(f"{shown_path(path)}: {what}: name the results file (-o) of a run, or its folder")
    further = (run.of_order(number) for number in range(1, _MOST_ORDERS + 1))
    return [run, *(each for each in further if each.journal.exists() or each.finished_journal.exists())]
