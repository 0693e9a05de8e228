"""What a process says of its environment; one context for all its threads, and whole after a fork."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from command import environment

from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context
from genkern.runtime.process import default_context
from genkern.runtime.process.default_context import Process


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_context, "_made", None)


def nowhere(index: int) -> None:
    return None


def test_nothing_said_is_a_context_that_finds_nothing() -> None:
    """Without variables there are no files, and nobody watches."""
    process = Process({}, nowhere)
    assert not process.context.is_watched
    assert process.online is None
    process.renew()


def test_what_is_wrong_is_said_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A warning for each variable and file that makes no sense; the rest works."""
    environ = {"GENKERN_CONFIG_A9W9": "x", "GENKERN_CONFIG": str(tmp_path / "none"), "GENKERN_TUNE_GEMM": "1"}
    process = Process({**environ, "GENKERN_RECORD_DIR": str(tmp_path / "site-packages")}, nowhere)
    for _ in range(2):
        assert process.context._bundles_of("a16w16") == []
        process.renew()
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert not process.context.is_watched


def test_the_log_says_what_serves(caplog: pytest.LogCaptureFixture) -> None:
    """Each problem once, and again when something else serves it."""
    caplog.set_level(logging.INFO, "genkern")
    process = Process({"GENKERN_LOG_TUNED_CONFIG": "1"}, nowhere)
    for choice in (None, None, Choice("not tuned"), Choice("not tuned")):
        process.context.watched(None, GemmProblem(1, 2, 3), choice)
    assert [line.rpartition(" -> ")[2] for line in caplog.messages] == [
        "bf16: no GPU: the library serves it",
        "bf16: not tuned: the library serves it",
    ]


@pytest.mark.usefixtures("fresh")
def test_threads_share_one() -> None:
    """However many come first at once."""
    found: list[Context] = []
    threads = [threading.Thread(target=lambda: found.append(default_context.default_context())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert len(found) == 8


@pytest.mark.usefixtures("fresh")
def test_a_fork_while_another_thread_holds_the_locks() -> None:
    """A child, as a data loader forks it, can call: nobody holds its locks, whatever the parent was doing."""
    context = default_context.default_context()
    holds, lets_go = threading.Event(), threading.Event()

    def hold() -> None:
        with context._lock, default_context._making:
            holds.set()
            lets_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    child = os.fork()
    if child == 0:
        default_context._made = None
        os._exit(0 if context.gpu(-1) is None and default_context.default_context().gpu(-1) is None else 1)
    deadline = time.monotonic() + 20.0
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    lets_go.set()
    thread.join()
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)


_PROGRAM = """
import torch, genkern
from genkern import tuned_gemm
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16)).requires_grad_(False)
x = torch.randn(5, 64)
wanted = model(x)
with genkern.patch(model):
    assert torch.equal(model(x), wanted)
"""


def test_a_patched_model_is_recorded(tmp_path: Path) -> None:
    """Its layers have no winner yet: that is what is to be found out. What serves them is logged, where the program has
    set up no logging too.
    """
    env = environment({"GENKERN_TUNE_GEMM": "1", "GENKERN_LOG_TUNED_CONFIG": "1"})
    done = subprocess.run([sys.executable, "-c", _PROGRAM], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[genkern] 5x") == 2, done.stderr
    (recorded,) = (tmp_path / "genkern_recorded").iterdir()
    assert [line.partition("'rowMajorA'")[0] for line in recorded.read_text().splitlines()[1:]] == [
        "- {'M': 5, 'N': 32, 'K': 64, ",
        "- {'M': 5, 'N': 16, 'K': 32, ",
    ]
