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
    """No process of the command is left; watchers need some time to see that their driver was killed."""
    deadline = time.monotonic() + 10.0
    while (left := relatives(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == []
