"""Tests of profiling/supervisor.py and process_guard.py, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import genkern
from genkern.errors import ProfilerError
from genkern.profiling.supervisor import (
    ChildDied,
    ChildGarbled,
    ChildTimedOut,
    Exit,
    StreamChild,
    SupervisorError,
    group_members,
    run_supervised,
    tail,
)

# Announces its process group in the file argv[1], has a child of its own, and waits for ever.
_FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "300"])
with open(sys.argv[1] + ".part", "w") as file:
    file.write(str(os.getpgid(0)))
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(300)
"""
_ECHO = """
import json, sys
for line in sys.stdin:
    print(json.dumps(["echo", json.loads(line)]), flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name is hostile to shells."""
    path = tmp_path / "a 'b' \"c\" $(d)"
    path.mkdir()
    return path


@pytest.fixture
def child(folder: Path) -> Iterator[Callable[[str], StreamChild]]:
    """Starts Python programs as StreamChild, and ends them."""
    started = []

    def start(program: str) -> StreamChild:
        stream = StreamChild()
        started.append(stream)
        stream.start([sys.executable, "-c", program], dict(os.environ), folder / "child stderr")
        return stream

    yield start
    for stream in started:
        stream.kill()


def _run(folder: Path, *argv: str, timeout_s: float = 20.0, **options: Any) -> Exit:
    return run_supervised(
        argv,
        env=options.pop("env", dict(os.environ)),
        timeout_s=timeout_s,
        grace_s=options.pop("grace_s", 5.0),
        stdout_path=folder / "out",
        stderr_path=folder / "err",
        **options,
    )


def _python(program: str) -> tuple[str, str, str]:
    return sys.executable, "-c", program


def _wait_for(condition: Callable[[], Any], limit_s: float = 5.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_output_environment_and_exit_code_are_the_programs(folder: Path) -> None:
    """Streams go to their files, the environment is exactly the given one, the exit code comes through."""
    program = "import os, sys; print(os.environ['ONLY']); sys.stderr.write('said\\n'); sys.exit(3)"
    ended = _run(folder, *_python(program), env={"ONLY": "this one"})
    assert (ended.returncode, ended.timed_out, ended.stderr_tail) == (3, False, "said")
    assert ended.description == "exit code 3"
    assert ended.duration_s > 0
    assert (folder / "out").read_text() == "this one\n"


def test_the_program_starts_with_default_signals(folder: Path) -> None:
    """Neither what the watcher handles nor what the caller ignores is ignored in the program.

    Signals 32 and 33 belong to the C library and cannot be set from Python, so whoever starts us decides on those.
    """
    ours = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        _run(folder, "grep", "SigIgn", "/proc/self/status")
    finally:
        signal.signal(signal.SIGUSR1, ours)
    mask = int((folder / "out").read_text().split()[1], 16)
    assert {number for number in signal.valid_signals() if mask >> (number - 1) & 1} == set()


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM", "SIGBUS"])
def test_a_death_by_signal_is_named(folder: Path, name: str) -> None:
    """The signal that killed the program is the one reported, though a watcher is between."""
    ended = _run(folder, *_python(f"import os, signal; os.kill(os.getpid(), signal.{name})"))
    assert ended.returncode == -signal.Signals[name]
    assert ended.description == f"killed by {name}"


@pytest.mark.parametrize(
    ("returncode", "timed_out", "said"),
    [
        (0, False, "exit code 0"),
        (1, False, "exit code 1"),
        (139, False, "killed by SIGSEGV (exit code 139)"),
        (255, False, "exit code 255"),
        (-99, False, "killed by signal 99"),
        (None, False, "ended; its watcher did not report how"),
        (-15, True, "timed out after 2.5 s (killed by SIGTERM)"),
    ],
)
def test_each_kind_of_end_is_described(returncode: int | None, timed_out: bool, said: str) -> None:
    """Each kind of end has its words; 128 + n is a shell's report of signal n."""
    assert Exit(returncode, timed_out, 2.51, "").description == said


def test_only_the_last_lines_of_stderr_are_kept(folder: Path) -> None:
    """The tail is the last 20 lines, also of a large file, and bytes that are no text do no harm."""
    ended = _run(folder, *_python("import os\nfor i in range(20000): os.write(2, b'\\xff%d\\n' % i)"))
    assert [f"\ufffd{i}" for i in range(19980, 20000)] == ended.stderr_tail.splitlines()
    assert ended.last_line == "\ufffd19999"
    assert tail(folder / "no such file") == ""


def test_a_timeout_lets_the_program_finish_its_files(folder: Path) -> None:
    """SIGTERM comes first, and what the program does then within the grace period counts."""
    # Shells are there at once, where Python may take longer than the limit on a busy machine.
    ended = _run(folder, "sh", "-c", "trap 'echo flushed; exit 0' TERM; echo ready; sleep 300 & wait", timeout_s=0.7)
    assert ended.timed_out
    assert (folder / "out").read_text() == "ready\nflushed\n"


def test_a_program_that_ignores_sigterm_is_killed_after_the_grace(folder: Path) -> None:
    """Nothing outlasts timeout and grace by much."""
    # On a busy machine half a second may go by until a shell has set its trap.
    ended = _run(folder, "sh", "-c", "trap '' TERM; sleep 300", timeout_s=1.5, grace_s=0.3)
    assert ended.timed_out
    assert ended.returncode == -signal.SIGKILL
    assert 1.8 <= ended.duration_s < 6


def test_a_watch_ends_a_program_that_makes_no_progress(folder: Path) -> None:
    """The idle limit counts from the last change of the token, not from the start."""
    progress = folder / "progress"
    program = 'for i in 1 2 3 4 5 6 7 8; do printf x >>"$0"; sleep 0.15; done; sleep 300'
    ended = _run(
        folder,
        *("sh", "-c", program, str(progress)),
        watch=lambda: (progress.stat().st_size if progress.exists() else 0, 0.6),
    )
    assert ended.timed_out
    assert progress.read_text() == "x" * 8
    assert ended.duration_s < 10


def test_children_of_a_program_that_ended_are_ended(folder: Path) -> None:
    """A background grandchild does not survive the return."""
    _run(folder, "sh", "-c", "sleep 300 & cut -d' ' -f5 /proc/$$/stat")
    assert group_members(int((folder / "out").read_text())) == []


def test_an_exception_in_the_parent_ends_the_group(folder: Path) -> None:
    """Ctrl-C in the parent is not held up by the child, and leaves nothing of it."""
    announced = folder / "group"

    def interrupt() -> tuple[object, float]:
        if announced.exists():
            raise KeyboardInterrupt
        return None, 20.0

    with pytest.raises(KeyboardInterrupt):
        _run(folder, *_python(_FAMILY), str(announced), watch=interrupt)
    assert group_members(int(announced.read_text())) == []


def _parent(folder: Path, call: str) -> tuple[subprocess.Popen[bytes], int]:
    """A parent process that runs `call` on the family, and the family's group once it is complete."""
    announced = folder / "group"
    argv = [*_python(_FAMILY), str(announced)]
    program = (
        "import os, time\nfrom genkern.profiling.supervisor import StreamChild, run_supervised\n"
        f"argv, folder = {argv!r}, {str(folder)!r}\n{call}"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(genkern.__file__).parents[1])}
    parent = subprocess.Popen(_python(program), env=env)
    assert _wait_for(announced.exists, 10.0)
    return parent, int(announced.read_text())


_RUN = (
    "run_supervised(argv, env=dict(os.environ), timeout_s=60, grace_s=5, "
    "stdout_path=folder + '/out', stderr_path=folder + '/err')"
)
_STREAM = "child = StreamChild()\nchild.start(argv, dict(os.environ), folder + '/err')\ntime.sleep(60)"


@pytest.mark.parametrize("call", [_RUN, _STREAM], ids=["run_supervised", "StreamChild"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_parent_that_is_killed(folder: Path, call: str, number: signal.Signals) -> None:
    """kill -9 of the parent takes watcher, program and the program's own child with it."""
    parent, group = _parent(folder, call)
    try:
        assert len(group_members(group)) == 3
    finally:
        parent.send_signal(number)
        parent.wait()
    assert _wait_for(lambda: not group_members(group))


def test_nothing_outlives_a_watcher_that_is_killed(folder: Path) -> None:
    """With the watcher gone by SIGKILL the parent still ends the rest of the group."""
    parent, group = _parent(folder, _RUN)
    try:
        os.kill(group, signal.SIGKILL)  # the watcher leads the group
        assert parent.wait(10) == 0
        assert group_members(group) == []
    finally:
        parent.kill()
        parent.wait()


def test_a_program_that_is_not_there_is_an_error_before_anything_runs(folder: Path) -> None:
    """The message names the program and is one of genkern's errors."""
    with pytest.raises(SupervisorError, match="no such program"):
        _run(folder, "no-such-profiler")
    assert issubclass(SupervisorError, ProfilerError)


def test_an_output_file_that_cannot_be_opened_is_an_error(folder: Path) -> None:
    """A missing folder is named."""
    with pytest.raises(SupervisorError, match="cannot write"):
        _run(folder / "missing", "true")


def test_a_stream_child_answers_in_order(child: Callable[[str], StreamChild]) -> None:
    """Objects of any size go and come back, several at once too."""
    echo = child(_ECHO)
    large = {"text": "x" * 300_000, "unicode": "\u00e9\n"}
    for request in (1, [None, 2.5], large):
        echo.send(request)
        assert echo.receive(10.0) == ["echo", request]
    echo.send("a")
    echo.send("b")
    assert [echo.receive(10.0), echo.receive(10.0)] == [["echo", "a"], ["echo", "b"]]


def test_a_stream_child_survives_the_thread_that_started_it(child: Callable[[str], StreamChild]) -> None:
    """The kernel's death signal comes at the end of a thread; only that of the process may end the child."""
    started: list[StreamChild] = []

    def start() -> None:
        started.append(child(_ECHO))
        started[0].send(0)
        started[0].receive(10.0)  # the watcher has asked for the signal by now

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    time.sleep(0.2)
    started[0].send(1)
    assert started[0].receive(10.0) == ["echo", 1]


def test_a_silent_child_times_out_and_can_still_answer(child: Callable[[str], StreamChild], folder: Path) -> None:
    """A timeout ends the wait, not the child; what it said last is in the message, on one line."""
    said = r"import os, sys; os.write(2, b'first\n loading\tit\n\n'); "
    slow = child(said + "sys.stdin.readline(); print('[1]', flush=True); sys.stdin.readline()")
    heard = folder / "child stderr"
    assert _wait_for(lambda: heard.exists() and heard.read_bytes().endswith(b"it\n\n"), 60.0)
    with pytest.raises(ChildTimedOut, match=r"in 0\.2 s; its last output: first \| loading it$"):
        slow.receive(0.2)
    slow.send("go on")
    assert slow.receive(10.0) == [1]


def test_a_child_that_stops_reading_times_out(child: Callable[[str], StreamChild]) -> None:
    """A request larger than the pipe does not block for ever."""
    deaf = child("import time; time.sleep(300)")
    with pytest.raises(ChildTimedOut):
        deaf.send("x" * 1_000_000, timeout_s=0.3)


def test_a_dying_child_says_how_and_why(child: Callable[[str], StreamChild]) -> None:
    """Answers given before come first; then ChildDied has the signal and the last words."""
    dying = child(
        "import os, sys\nprint('[1]', flush=True)\n"
        "sys.stderr.write('Memory access fault\\n')\nsys.stderr.flush()\nos.abort()"
    )
    assert dying.receive(10.0) == [1]
    with pytest.raises(ChildDied, match="killed by SIGABRT") as caught:
        dying.receive(10.0)
    assert caught.value.exit.returncode == -signal.SIGABRT
    assert "Memory access fault" in str(caught.value)
    with pytest.raises(ChildDied, match="SIGABRT"):
        dying.send("anything")


def test_answers_are_not_lost_when_sending_finds_the_child_dead(child: Callable[[str], StreamChild]) -> None:
    """What a child answered before its death can be received after a send has failed."""
    dying = child("import os\nprint('[1]\\n[2]', flush=True)\nos.abort()")
    assert _wait_for(lambda: _fails(lambda: dying.send(0)))
    assert [dying.receive(1.0), dying.receive(1.0)] == [[1], [2]]
    with pytest.raises(ChildDied):
        dying.receive(1.0)


def _fails(action: Callable[[], None]) -> bool:
    try:
        action()
    except ChildDied:
        return True
    return False


def test_a_line_that_is_not_json_is_reported_with_its_text(child: Callable[[str], StreamChild]) -> None:
    """Text of a library on the wrong stream is shown, not swallowed."""
    noisy = child("print('ptxas info: hello', flush=True); import time; time.sleep(300)")
    with pytest.raises(ChildGarbled, match="ptxas info"):
        noisy.receive(10.0)


def test_kill_leaves_no_process_and_no_zombie(folder: Path, child: Callable[[str], StreamChild]) -> None:
    """After kill the whole group is gone, this process has no dead child to reap, and kill may be repeated."""
    announced = folder / "group"
    family = StreamChild()
    family.start([*_python(_FAMILY), str(announced)], dict(os.environ), folder / "err")
    assert _wait_for(announced.exists, 10.0)
    group = int(announced.read_text())
    ended = family.kill()
    assert ended is not None
    assert ended.returncode == -signal.SIGKILL
    assert group_members(group) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(group, os.WNOHANG)
    assert family.kill() == ended


def test_a_context_ends_its_child(folder: Path) -> None:
    """Leaving the block by an exception kills the child."""
    announced = folder / "group"

    def fail() -> None:
        with StreamChild() as family:
            family.start([*_python(_FAMILY), str(announced)], dict(os.environ), folder / "err")
            assert _wait_for(announced.exists, 10.0)
            raise RuntimeError("bug")

    with pytest.raises(RuntimeError, match="bug"):
        fail()
    assert group_members(int(announced.read_text())) == []


def test_a_child_can_be_started_again(child: Callable[[str], StreamChild], folder: Path) -> None:
    """A new child has nothing of the old one's output or end."""
    stream = child("print('[1]', flush=True)")
    assert stream.receive(10.0) == [1]
    with pytest.raises(ChildDied):
        stream.receive(10.0)
    stream.start([*_python(_ECHO)], dict(os.environ), folder / "again")
    stream.send(2)
    assert stream.receive(10.0) == ["echo", 2]


def test_a_child_that_was_not_started_is_an_error() -> None:
    """Using it before start raises SupervisorError, and kill does nothing."""
    with pytest.raises(SupervisorError, match="not started"):
        StreamChild().send(1)
    assert StreamChild().kill() is None
