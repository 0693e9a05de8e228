"""Run measured processes such that none hangs forever, outlives its parent, or ends without a report.

Each child runs in a process group of its own below a small watcher (`process_guard`). Signals go to the whole group,
and the group ends with this process however it ends. Linux only, like the profilers.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from genkern.errors import ProfilerError

_GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "process_guard.py")
_TAIL_LINES = 20
_TAIL_BYTES = 64 * 1024
_LAST_WORDS_LINES = 3
_LAST_WORDS_CHARACTERS = 300
_POLL_S = 0.05
# Time for a group to vanish after SIGKILL; only a process stuck in the driver takes longer.
_KILL_WAIT_S = 10.0
# Time from the closing of a child's pipes to its end and its watcher's report. The kernel releases the child's GPU
# resources in between, which can take any time. After this time the child gets SIGKILL, and that is reported.
_END_WAIT_S = 5.0

# A process forked by another thread during a start (the farm's compile process, with one job) would keep the pipes of
# that start open for its lifetime. So forks wait until the start is over.
_starting = threading.Lock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)

# Called at every poll, returns (token, limit_s). The child times out if `token` stays the same for `limit_s` seconds.
Watch = Callable[[], tuple[object, float]]


class SupervisorError(ProfilerError):
    """A measured process could not be started, or cannot answer any more."""


class ChildTimedOut(SupervisorError):
    """The child did not answer in time. It still runs until `StreamChild.kill`."""


class ChildDied(SupervisorError):
    """The child ended; `exit` describes how."""

    def __init__(self, message: str, exit: Exit) -> None:
        super().__init__(message)
        self.exit = exit


class ChildGarbled(SupervisorError):
    """The child's answer is not JSON, or is not an answer to the request."""


@dataclass(frozen=True)
class Exit:
    """How a child ended.

    returncode: exit code; negative for a signal, as in `subprocess`; None if unknown
    timed_out: True if it was ended because of a timeout
    duration_s: seconds from start to end
    stderr_tail: the last 20 lines of its standard error
    """

    returncode: int | None
    timed_out: bool
    duration_s: float
    stderr_tail: str

    @property
    def description(self) -> str:
        """How it ended, such as `killed by SIGSEGV`, `exit code 3` or `timed out after 4.1 s (killed by SIGTERM)`."""
        text = "ended; its watcher did not report how" if self.returncode is None else _in_words(self.returncode)
        return f"timed out after {self.duration_s:.1f} s ({text})" if self.timed_out else text

    @property
    def was_lost(self) -> bool:
        """True if it did not end by itself: a signal ended it, or the cause is unknown."""
        return self.returncode is None or self.returncode < 0

    @property
    def last_line(self) -> str:
        """The last line of standard error that is not blank, or ""."""
        lines = [line.strip() for line in self.stderr_tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def _in_words(returncode: int) -> str:
    number = -returncode if returncode < 0 else returncode - 128
    code = "" if returncode <= 0 else f"exit code {returncode}"
    try:
        # A shell between this process and the program reports signal n as 128 + n.
        return f"killed by {signal.Signals(number).name}" + (f" ({code})" if code else "")
    except ValueError:
        return code or (f"killed by signal {number}" if returncode < 0 else "exit code 0")


def tail(path: str | os.PathLike[str], lines: int = _TAIL_LINES) -> str:
    """Return the last `lines` lines of a text file, or "" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            data = file.read()
    except OSError:
        return ""
    return "\n".join(data.decode("utf-8", "replace").splitlines()[-lines:])


def run_supervised(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    grace_s: float,
    stdout_path: str | os.PathLike[str],
    stderr_path: str | os.PathLike[str],
    watch: Watch | None = None,
) -> Exit:
    """Run `argv` to its end and return how it ended. Its whole process group is gone on return.

    On a timeout (`timeout_s` in all, or as `watch` decides) the group gets SIGTERM, so that a profiler can write its
    data, then SIGKILL after `grace_s`. An exception here, Ctrl-C included, ends the group at once. Raises
    SupervisorError if the program or an output file cannot be opened.
    """
    with _open_for_writing(stdout_path) as stdout, _open_for_writing(stderr_path) as stderr:
        group = _Group(argv, env, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
    timed_out = False
    try:
        if not group.ends_within(timeout_s, watch):
            timed_out = True
            group.send(signal.SIGTERM)
            group.ends_within(grace_s)
    finally:
        returncode = group.kill()
    return Exit(returncode, timed_out, group.age_s, tail(stderr_path))


class StreamChild:
    """A long-lived child that exchanges JSON lines over its standard input and output.

    Use it as a context manager, or call `kill`: either leaves neither a process nor a zombie. After ChildTimedOut the
    answer may still arrive, so kill the child instead of sending another request.
    """

    def __init__(self) -> None:
        self._group: _Group | None = None
        self._killing = threading.Lock()
        self._stderr_path = ""
        self._received = bytearray()
        self._exit: Exit | None = None

    def start(self, argv: Sequence[str], env: Mapping[str, str], stderr_path: str | os.PathLike[str]) -> None:
        """Start `argv`, after ending a child that still runs. Raises SupervisorError if it cannot start."""
        self.kill()
        self._received.clear()
        self._exit = None
        self._stderr_path = os.fspath(stderr_path)
        with _open_for_writing(stderr_path) as stderr:
            self._group = _Group(argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr)
        for pipe in (self._group.stdin, self._group.stdout):
            os.set_blocking(pipe.fileno(), False)

    def send(self, obj: Any, timeout_s: float = 10.0) -> None:
        """Write one JSON line. Raises ChildDied, or ChildTimedOut if the child stops reading."""
        group = self._alive()
        data = memoryview(json.dumps(obj).encode() + b"\n")
        deadline = time.monotonic() + timeout_s
        while data:
            try:
                data = data[os.write(group.stdin.fileno(), data) :]
            except BlockingIOError:
                if not _ready(group.stdin, selectors.EVENT_WRITE, deadline):
                    message = f"the measured process does not read requests ({timeout_s:g} s){self._last_words()}"
                    raise ChildTimedOut(message) from None
            except OSError:
                raise self._died() from None

    def receive(self, timeout_s: float) -> Any:
        """Return the next object. Raises ChildTimedOut, ChildDied, or ChildGarbled for a line that is not JSON.

        Answers that the child wrote before it died are returned first.
        """
        deadline = time.monotonic() + timeout_s
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            group = self._alive()
            if (data := self._read_some()) == b"":
                raise self._died()
            if data is None and not _ready(group.stdout, selectors.EVENT_READ, deadline):
                raise ChildTimedOut(f"the measured process did not answer in {timeout_s:g} s{self._last_words()}")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            return json.loads(line)
        except ValueError:
            text = line[:200].decode("utf-8", "replace")
            raise ChildGarbled(f"the measured process wrote {text!r}, which is not a JSON line") from None

    def kill(self) -> Exit | None:
        """End the child's whole group now and return how it ended; None if none was started. May be called repeatedly.

        Any thread may call it, also while another thread waits for an answer.
        """
        with self._killing:
            if (group := self._group) is not None:
                returncode = group.kill()
                self._exit = Exit(returncode, False, group.age_s, tail(self._stderr_path))
                for pipe in (group.stdin, group.stdout):
                    with contextlib.suppress(OSError):
                        pipe.close()
                self._group = None
            return self._exit

    def __enter__(self) -> StreamChild:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _alive(self) -> _Group:
        if (group := self._group) is not None:
            return group
        if self._exit is not None:
            raise ChildDied(f"the measured process has ended: {self._exit.description}", self._exit)
        raise SupervisorError("the measured process was not started")

    def _last_words(self) -> str:
        # The message quotes the log because the log is deleted with the run's folder.
        lines = tail(self._stderr_path, _LAST_WORDS_LINES).split("\n")
        said = " | ".join(" ".join(line.split()) for line in lines if line.strip())
        return f"; its last output: {said[-_LAST_WORDS_CHARACTERS:]}" if said else ""

    def _read_some(self) -> bytes | None:
        """Move the child's output to the buffer.

        Returns b"" at the end of the output, None if there is nothing to read yet.
        """
        try:
            data = os.read(self._alive().stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return None
        self._received += data
        return data

    def _died(self) -> ChildDied:
        """Return ChildDied for a child that closed its pipe.

        First waits up to 5 s for the child to end by itself, so that its own exit code is known.
        """
        group = self._alive()
        group.ends_within(_END_WAIT_S)
        while self._read_some():
            pass
        ended = self.kill()
        assert ended is not None
        said = f":\n{ended.stderr_tail}" if ended.stderr_tail else f"; it wrote nothing to {self._stderr_path}"
        return ChildDied(f"the measured process died ({ended.description}){said}", ended)


class _Group:
    """One child below its watcher, and the process group of both.

    A process forked from the one that started the child may use this object too. The kernel tells only a parent how its
    child ended, so the watcher writes it to a pipe.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], **streams: Any) -> None:
        if shutil.which(argv[0], path=env.get("PATH", os.defpath)) is None:
            raise SupervisorError(f"cannot run {argv[0]!r}: no such program; give its full path or add it to PATH")
        self._parent_pid = os.getpid()
        self._started_s = time.monotonic()
        self._ended_s: float | None = None
        self._returncode: int | None = None
        self._is_over = False
        with _starting:
            self._told, tells = os.pipe()
            guarded = [sys.executable, "-I", "-S", _GUARD, str(self._parent_pid), str(tells), *argv]
            streams |= {"env": dict(env), "start_new_session": True, "bufsize": 0, "pass_fds": (tells,)}
            try:
                self._process: subprocess.Popen[bytes] = subprocess.Popen(guarded, **streams)
            except OSError as error:
                os.close(self._told)
                raise SupervisorError(f"cannot start {argv[0]!r}: {error.strerror}") from error
            finally:
                os.close(tells)

    @property
    def stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    @property
    def age_s(self) -> float:
        return (self._ended_s or time.monotonic()) - self._started_s

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def ends_within(self, limit_s: float, watch: Watch | None = None) -> bool:
        """Wait for the child's end without reaping it. Returns False if the time runs out first."""
        now_s = time.monotonic()
        deadline_s, changed_s, token = now_s + limit_s, now_s, None
        while not self._has_ended():
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return False
            if watch is not None:
                latest, idle_limit_s = watch()
                if latest != token:
                    token, changed_s = latest, now_s
                elif now_s - changed_s >= idle_limit_s:
                    return False
            time.sleep(_POLL_S if now_s - self._started_s > 1.0 else _POLL_S / 10)
        return True

    def kill(self) -> int | None:
        """End the rest of the group, wait until it is gone, and return the child's exit code if it is known."""
        if not self._is_over:
            ended_itself = self._has_ended()
            # The watcher is not reaped yet, so its process group id cannot belong to another group.
            self.send(signal.SIGKILL)
            self._returncode = self._how_it_ended(ended_itself)
            self._is_over = True
            deadline_s = time.monotonic() + _KILL_WAIT_S
            while group_members(self._process.pid):
                if time.monotonic() > deadline_s:
                    raise SupervisorError(
                        f"process group {self._process.pid} does not end after SIGKILL: it is stuck in the GPU driver; "
                        "look at dmesg and reset the GPU"
                    )
                time.sleep(_POLL_S / 10)
            self._ended_s = time.monotonic()
        return self._returncode

    def _has_ended(self) -> bool:
        ended = select.poll()
        ended.register(self._told, select.POLLIN)
        return bool(ended.poll(0))

    def _how_it_ended(self, itself: bool) -> int | None:
        """Return the child's exit code after the group has ended.

        `itself`: the child ended before the group was killed.
        """
        with os.fdopen(self._told, "rb") as told:
            status = told.read()
        of_watcher = self._process.wait() if os.getpid() == self._parent_pid else None
        # A watcher that has reported its program's status may be killed with the group before it exits with the same
        # status.
        if status:
            return os.waitstatus_to_exitcode(int(status))
        return of_watcher if itself or of_watcher is not None else -signal.SIGKILL


def group_members(group_id: int) -> list[int]:
    """Return the ids of a group's processes that still run. Zombies, which hold no resources, are not counted."""
    try:
        os.killpg(group_id, 0)
    except ProcessLookupError:
        return []
    except PermissionError:
        pass
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                # proc(5): "pid (name) state ppid pgrp ..."; the name may contain spaces and brackets.
                state, _, pgrp = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:3]
                if int(pgrp) == group_id and state not in "ZX":
                    members.append(int(entry))
    return members


def _ready(pipe: IO[bytes], event: int, deadline_s: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, event)
        return bool(selector.select(max(0.0, deadline_s - time.monotonic())))


def _open_for_writing(path: str | os.PathLike[str]) -> IO[bytes]:
    try:
        return Path(path).open("wb")
    except OSError as error:
        raise SupervisorError(f"cannot write {os.fspath(path)}: {error.strerror}") from error
