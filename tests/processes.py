"""Waiting for what other processes do, and looking for those that a command has left behind."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from command import ended

WAIT_S = 60.0


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for something that another process brings about."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert process.poll() is None, ended(process)
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def relatives(folder: Path) -> list[str]:
    """Command lines of the living processes that a command in `folder` started: its name is in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.fsencode(folder) in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if line]


def assert_gone(folder: Path) -> None:
    """No process of the command is left; watchers need some time to see that their driver was killed.

    Where the command ran in this process, the trackers of resources that it started are this one's, and stay.
    """
    deadline = time.monotonic() + 10.0
    own = [*children("resource_tracker").values()]
    while (
        left := [each for each in relatives(folder) if not any(each in line for line in own)]
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []


def zombies() -> dict[int, str]:
    """Children of this process that wait to be reaped; those of other tests among them."""
    return {pid: line for pid, line in _all_children().items() if line.startswith("Z")}


def children(program: str) -> dict[int, str]:
    """Those children of this process whose command line names this program, with their state and that line."""
    return {pid: line for pid, line in _all_children().items() if program in line}


def _all_children() -> dict[int, str]:
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                state, ppid = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
                line = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if int(ppid) == os.getpid():
                found[int(entry)] = f"{state} {line}"
    return found
