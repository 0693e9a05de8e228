"""Progress on the terminal: how much is compiled and measured, how fast, how much failed, and how long it will take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from genkern.farm import FarmCounts


class Bar:
    """The bar of one problem; `advance` counts one candidate."""

    def __init__(self, progress: RichProgress | None, task: int, counts: FarmCounts) -> None:
        self._progress = progress
        self._task = task
        self._counts = counts

    def advance(self) -> None:
        if self._progress is not None:
            c = self._counts
            rate = f"{c.compiled / c.compile_s:.1f}/s" if c.compile_s else "-"
            farm = f"compiled {c.compiled} ({rate}), cached {c.cached}, failed {c.failed}"
            self._progress.update(self._task, advance=1, farm=farm)  # type: ignore[arg-type]


class Progress:
    """Bars on a terminal; silence elsewhere, where the lines of the report say it all."""

    def __init__(self, console: Console, *, enabled: bool) -> None:
        self._progress: RichProgress | None = None
        if enabled and console.is_terminal:
            self._progress = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[farm]}"),
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
    def problem(self, name: str, candidates: int, counts: FarmCounts) -> Iterator[Bar]:
        """A bar for one problem, gone when the problem is done."""
        if self._progress is None:
            yield Bar(None, 0, counts)
            return
        task = self._progress.add_task(name, total=candidates, farm="")
        try:
            yield Bar(self._progress, int(task), counts)
        finally:
            self._progress.remove_task(task)
