"""The command as a user meets it: in this process, or in one of its own."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from genkern.__main__ import main

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
SMALL = "- {'M': 16, 'N': 128, 'K': 256}\n- {'M': 33, 'N': 64, 'K': 4097}\n- {'M': 64, 'N': 128, 'K': 256}\n"


@dataclass(frozen=True)
class Ran:
    """How the command ended, and what it said."""

    status: int
    out: str
    err: str

    @property
    def refusal(self) -> str:
        """The one line with which a command refuses; anything else is a failure of the test."""
        assert self.status == 2, self
        line = self.err.removesuffix("\n")
        assert line.startswith("genkern: "), self
        assert "\n" not in line, self
        assert line.isprintable(), self
        return line


def run_here(capsys: pytest.CaptureFixture[str], *argv: object, env: dict[str, str] | None = None) -> Ran:
    """Run the command in this process, which keeps its signal handlers and its environment.

    What `env` makes of the machine (machines.py) holds for the processes that the command starts, and not for itself.
    """
    capsys.readouterr()
    with _own_handlers(), pytest.MonkeyPatch.context() as patch:
        for name, value in (environment(env) if env else {}).items():
            patch.setenv(name, value)
        # Measured processes are given the path of this one.
        patch.setattr(sys, "path", [*(env or {}).get("PYTHONPATH", "").split(os.pathsep), *sys.path])
        status = main([str(argument) for argument in argv])
    said = capsys.readouterr()
    return Ran(status, said.out, said.err)


def start(*argv: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start the command in a session of its own, as a terminal does.

    It is a fork of a process that has imported genkern, which saves half of what a small run takes, but where `env` may
    change what is imported.
    """
    kind = subprocess.Popen if _at_import(env or {}) else _Forked
    return kind(
        [sys.executable, "-m", "genkern", *map(str, argv)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=environment(env),
        start_new_session=True,
    )


def _at_import(changes: dict[str, str]) -> bool:
    """Whether Python, or a module of genkern's when it is imported, may look at these."""
    names = {name for name, value in changes.items() if os.environ.get(name) != value} - {"PYTHONPATH"}
    what = json.loads(changes.get("MACHINE", "{}"))
    return bool(what.keys() & {"missing", "clock"}) or any(name.startswith(("PYTHON", "GENKERN_")) for name in names)


class _Forked(subprocess.Popen[str]):
    """A process that tests/forked_commands.py forks, and that becomes a child of this one."""

    _asked: socket.socket | None = None

    def _execute_child(self, args: list[str], *given: Any) -> None:
        cwd, env, pipes = given[4], given[5], given[9:15]
        pipe_to, _, _, pipe_from, _, errors = pipes
        if _Forked._asked is None:
            program = [sys.executable, str(Path(__file__).with_name("forked_commands.py"))]
            _Forked._asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                subprocess.Popen(program, stdin=theirs, stdout=subprocess.DEVNULL, env=environment())
        message = json.dumps([args[3:], env, str(cwd or Path.cwd())]).encode()
        prctl = ctypes.CDLL(None).prctl
        # What the process between the two leaves behind when it ends comes to us.
        prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(_Forked._asked, [message], [pipe_to, pipe_from, errors])
            self.pid = int(_Forked._asked.recv(64))
        finally:
            prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(*argv: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> Ran:
    """Run the command in a process of its own."""
    return ended(start(*argv, env=env, cwd=cwd))


def ended(process: subprocess.Popen[str]) -> Ran:
    """Wait for the command's end; also for that of every process that holds its output."""
    try:
        out, err = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return Ran(process.returncode, out, err)


def environment(changes: dict[str, str] | None = None) -> dict[str, str]:
    """This environment, in which the command finds this checkout; `changes` may name more PYTHONPATH."""
    changes = dict(changes or {})
    path = [changes.pop("PYTHONPATH", ""), str(ROOT)]
    return {**os.environ, **changes, "PYTHONPATH": os.pathsep.join(part for part in path if part)}


@contextmanager
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = threading.excepthook
    try:
        yield
    finally:
        threading.excepthook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
