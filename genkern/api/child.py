"""Runs genkern's command in a child process, and shows its progress: a bar in a terminal or a notebook."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genkern.errors import BugError, RunError
from genkern.file_io import regular_bytes
from genkern.runtime.process.genkern_command import GenkernCommand

_LOG = logging.getLogger("genkern")
# Seconds between two looks at what the child has written. An interrupt does not wait for them.
_LOOKS_APART_S = 0.1
# Seconds between two updates of the bar while no size ends.
_SHOWN_APART_S = 0.5
_BAR = "{percentage:3.0f}%|{bar}| {n_fmt} of {total_fmt} sizes [{elapsed}<{remaining}{postfix}]"
_NOTE = "note: "
# Exit statuses of the command: success, and a result that needs attention.
_GOOD = (0, 1)
BUG = 3


@dataclass
class Steps:
    """What a child has told so far.

    ended: by the name of each problem that has ended, why it has no winner, or ""
    measured: by size, the number of candidates that have an outcome, for the sizes that are being measured
    lines: the lines that it printed
    """

    ended: dict[str, str] = field(default_factory=dict)
    measured: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes that it printed."""
        return tuple(line.removeprefix(_NOTE) for line in self.lines if line.startswith(_NOTE))

    def take(self, step: dict[str, Any]) -> None:
        """Add one line of the progress file (genkern.tuning.progress.ProgressFile)."""
        if "ended" in step:
            self.ended[step["name"]] = step["ended"]
            self.measured.pop(step["size"], None)
        else:
            self.measured[step["size"]] = step.get("measured", 0)


class _Tail:
    """The complete lines that a growing file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def lines(self) -> list[str]:
        data = b""
        with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


def ran(
    arguments: Sequence[str], folder: Path, sizes: int, *, progress: bool | None, verbose: bool, steps: Steps
) -> int:
    """Run the main command with these arguments, and return its exit status: 0, 1 or BUG.

    folder: for its log and its progress file
    sizes: the number of sizes of the run, for the bar
    progress: show a bar on standard error; None: in a terminal and in a notebook
    verbose: print the command's lines on standard output
    steps: receives what the command tells, also if this raises

    If this process is interrupted meanwhile, the command is stopped as by Ctrl-C, which keeps what it has found, and
    the interrupt is raised. Raises RunError with the command's message if it failed, and BugError if a bug ended it.
    """
    told, log = folder / "progress.jsonl", folder / "run.log"
    tails = _Tail(told), _Tail(log)

    def look() -> list[str]:
        for line in tails[0].lines():
            steps.take(json.loads(line))
        lines = tails[1].lines()
        steps.lines += lines
        return lines

    with _shown(sizes, progress) as show:
        command = GenkernCommand([*arguments, "--progress_file", str(told)], log, cwd=os.getcwd())
        try:
            while (status := command.wait(_LOOKS_APART_S)) is None:
                _say(look(), verbose)
                show(steps)
        except BaseException:
            _end(command)
            look()
            raise
        _say(look(), verbose)
        show(steps)
    if status == BUG and not steps.ended:
        raise BugError(command.last_line, regular_bytes(log).decode("utf-8", "replace"))
    if status not in (*_GOOD, BUG):
        raise RunError(command.last_line or f"genkern ended with status {status}")
    return status


def _end(command: GenkernCommand) -> None:
    """End the command, also if the user interrupts again while it cleans up."""
    try:
        command.end()
    except KeyboardInterrupt:
        command.end()


def _say(lines: Sequence[str], verbose: bool) -> None:
    for line in lines:
        if verbose:
            print(line, flush=True)
        elif line.startswith(_NOTE):
            _LOG.info("%s", line.removeprefix(_NOTE))


def _in_notebook() -> bool:
    """Return True if this program is the kernel of a notebook, as tqdm.auto finds it."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and "IPKernelApp" in shell.config


@contextlib.contextmanager
def _shown(sizes: int, progress: bool | None) -> Iterator[Callable[[Steps], None]]:
    """Context with a function that shows the steps of a run; it shows nothing if `progress` is false."""
    wanted = (_in_notebook() or sys.stderr.isatty()) if progress is None else progress
    if not wanted:
        yield lambda steps: None
        return
    # In a notebook without ipywidgets this is a bar of text, and a hint.
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        """A bar without a thread that watches it, which would outlive it."""

        monitor_interval = 0

    with Bar(total=sizes, leave=False, dynamic_ncols=True, smoothing=0, bar_format=_BAR) as bar:
        next_s = 0.0

        def show(steps: Steps) -> None:
            nonlocal next_s
            if time.monotonic() < next_s and bar.n == len(steps.ended):
                return
            next_s = time.monotonic() + _SHOWN_APART_S
            under_way = ", ".join(f"{size}: {count:,} candidates" for size, count in steps.measured.items() if count)
            bar.set_postfix_str(under_way, refresh=False)
            bar.n = len(steps.ended)
            bar.refresh()

        yield show
