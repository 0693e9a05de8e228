"""Progress on the terminal: how much is compiled and measured, how fast, how much failed, and how long it will take."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from genkern.farm import FarmCounts


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
    def problem(self, name: str, candidates: int, counts: FarmCounts) -> Iterator[Callable[[], None]]:
        """A bar for one problem, gone when the problem is done; yields what counts one candidate."""
        if (progress := self._progress) is None:
            yield lambda: None
            return
        task = progress.add_task(name, total=candidates, farm="")

        def advance() -> None:
            rate = f"{counts.compiled / counts.compile_s:.1f}/s" if counts.compile_s else "-"
            farm = f"compiled {counts.compiled} ({rate}), cached {counts.cached}, failed {counts.failed}"
            progress.update(task, advance=1, farm=farm)

        try:
            yield advance
        finally:
            progress.remove_task(task)
