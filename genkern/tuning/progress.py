"""Progress of a run: bars on the terminal, and a file with a line for each step, which another program may show.

The bars show candidates measured of those in the space, kernels compiled, failures and rate, but no remaining time: a
search ends long before it has measured the whole space, and when is not known. The command prints the time that is left
for the remaining sizes (genkern/cli/time_left.py).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from genkern.compile.farm import FarmCounts
from genkern.file_io import require_start_or_none, write_whole

# Width of the terminal from which on the farm's counts fit beside the bar.
_ROOMY_COLUMNS = 110
# Seconds between two lines of a progress file about one size.
_LINES_APART_S = 0.2


class ProgressFile:
    """Appends JSON objects, one a line, about the steps of a run (--progress_file).

    `{"size": "16x4096x4096", "of": 672}`: the candidates of a size are measured from now on
    `{"size": "16x4096x4096", "measured": 120}`: so many candidates of it have an outcome
    `{"size": "16x4096x4096", "ended": "", "name": ...}`: it has a winner; else `ended` says why there is none

    `name` is the problem's whole name (`GemmProblem.name`). Raises OutputError if the file cannot be created, or holds
    something else than the progress of an earlier run, which is replaced.
    """

    def __init__(self, path: str) -> None:
        require_start_or_none(path, '{"size"', "progress of a run")
        write_whole(path, "")
        self._path = path
        self._lock = threading.Lock()

    def began(self, size: str, candidates: int) -> None:
        self._append(size=size, of=candidates)

    def measured(self, size: str, count: int) -> None:
        self._append(size=size, measured=count)

    def ended(self, size: str, name: str, message: str) -> None:
        self._append(size=size, ended=message, name=name)

    def _append(self, **step: object) -> None:
        # A run does not end because its progress cannot be shown.
        with self._lock, contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(step) + "\n")


class Progress:
    """Shows a bar for each problem that is being tuned, if the output is a terminal, and tells `file`, if any."""

    def __init__(self, console: Console, file: ProgressFile | None = None) -> None:
        self._file = file
        self._progress: RichProgress | None = None
        if console.is_terminal:
            farm = [TextColumn("{task.fields[farm]}")] if console.width >= _ROOMY_COLUMNS else []
            self._progress = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("{task.fields[failed]}"),
                *farm,
                console=console,
                transient=True,
            )

    def __enter__(self) -> Progress:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    @contextlib.contextmanager
    def problem(self, name: str, candidates: int, counts: FarmCounts) -> Iterator[Callable[[int], None]]:
        """Show a bar while the block runs; yields a function that advances it by a number of candidates."""
        with self._bar(name, candidates, counts) as advance:
            yield advance if self._file is None else _also_in(self._file, name, candidates, advance)

    @contextlib.contextmanager
    def _bar(self, name: str, candidates: int, counts: FarmCounts) -> Iterator[Callable[[int], None]]:
        if (progress := self._progress) is None:
            yield lambda count: None
            return
        task = progress.add_task(name, total=candidates, farm="", failed="")

        def advance(count: int) -> None:
            progress.update(task, advance=count, farm=farm_text(counts), failed=f"failed {counts.failed}")

        try:
            yield advance
        finally:
            progress.remove_task(task)


def _also_in(file: ProgressFile, name: str, candidates: int, advance: Callable[[int], None]) -> Callable[[int], None]:
    """Return `advance`, which also tells the file, at intervals."""
    file.began(name, candidates)
    measured, next_s = 0, 0.0

    def told(count: int) -> None:
        nonlocal measured, next_s
        advance(count)
        measured += count
        if time.monotonic() >= next_s:
            file.measured(name, measured)
            next_s = time.monotonic() + _LINES_APART_S

    return told


def farm_text(counts: FarmCounts) -> str:
    """Return the farm's counts as text, such as `compiled 320 (34.5/s), cached 12`."""
    rate = f" ({counts.compiled / counts.compile_s:.1f}/s)" if counts.compile_s else ""
    return f"compiled {counts.compiled}{rate}, cached {counts.cached}"
