"""Progress bars on the terminal: candidates measured of those in the space, kernels compiled, failures and rate.

The bars show no remaining time: a search ends long before it has measured the whole space, and when is not known. The
command prints the time that is left for the remaining sizes (genkern/command/time_left.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress

from genkern.farm.farm import FarmCounts

# Width of the terminal from which on the farm's counts fit beside the bar.
_ROOMY_COLUMNS = 110


class Progress:
    """Shows a bar for each problem that is being tuned; nothing if the output is not a terminal."""

    def __init__(self, console: Console) -> None:
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


def farm_text(counts: FarmCounts) -> str:
    """Return the farm's counts as text, such as `compiled 320 (34.5/s), cached 12`."""
    rate = f" ({counts.compiled / counts.compile_s:.1f}/s)" if counts.compile_s else ""
    return f"compiled {counts.compiled}{rate}, cached {counts.cached}"
