"""RunFiles: the files of one run, by the name of its results file, and the runs that a path means."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from genkern.errors import OutputError, ResultsError
from genkern.files import is_stream, shown_path

# Of one name, in bytes, on every file system of Linux.
_MOST_NAME = 255
_JOURNAL = ".journal"
_FINISHED = ".journal.previous"
# Behind the name of the results, of a run's further passes (--batch_invariant).
_ORDER = ".order"
_OF_ORDER = re.compile(rf"{re.escape(_ORDER)}[0-9]{{1,3}}\Z")
_MOST_ORDERS = 9


@dataclass(frozen=True)
class RunFiles:
    """`journal` is there while a run is unfinished, `finished_journal` afterwards, `lock` while it is going on.

    They lie beside the file that `results` means: a link and what it points to are one run. `bug_log` is there when
    genkern itself was at fault. `replaced_journal` is a free name for the journal of an unfinished run that another
    one takes the place of.
    """

    results: str

    @classmethod
    def named_by(cls, path: str) -> RunFiles:
        """The run whose results file, or journal, `path` is."""
        for suffix in (_FINISHED, _JOURNAL):
            path = path.removesuffix(suffix)
        return cls(path)

    def of_order(self, number: int) -> RunFiles:
        """Those of a further pass of the run, which has a journal of its own, and the run's lock."""
        return RunFiles(f"{self.results}{_ORDER}{number}")

    @property
    def known(self) -> bool:
        """Whether there is a trace of the run besides its results."""
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
        """Raise OutputError where the last of these files, which a run names at its end, could not have its name."""
        longest = os.fsencode(f"{self.of_order(_MOST_ORDERS).journal.name}.replaced_99")
        if (over := len(longest) - _MOST_NAME) > 0:
            where = shown_path(self.results)
            raise OutputError(f"{where}: its name is {over} bytes too long for the files beside it; give a shorter -o")

    @property
    def bug_log(self) -> Path:
        # Beside a stream nothing can lie.
        return Path("genkern.bug.log" if is_stream(self.results) else f"{self._file}.bug.log")

    @property
    def lock(self) -> Path:
        return Path(f"{_OF_ORDER.sub('', self._file)}.lock")

    @property
    def _file(self) -> str:
        """As it was named, which is shorter, unless that is by a link."""
        file = os.path.realpath(self.results)
        return self.results if file == os.path.abspath(self.results) else file


def find_runs(path: str) -> list[RunFiles]:
    """The runs of a results file, of its journal, or of a folder that has some. Raises ResultsError for none."""
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
