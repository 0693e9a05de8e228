"""genkern.tune in a notebook: the bar, and the stop button."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import start_new_kernel
from processes import WAIT_S, relatives
from tiny_space import tiny_command


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """A kernel of Jupyter whose processes have this test's folder in their environment."""
    manager, client = start_new_kernel(env={**os.environ, "GENKERN_CACHE_DIR": str(tmp_path)}, cwd=str(tmp_path))
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_notebook_shows_a_bar(kernel: tuple[Any, Any], tmp_path: Path) -> None:
    """Without being asked; a script's output has none."""
    tiny_command(tmp_path, tmp_path, "")
    _, client = kernel
    shown: list[Any] = []
    code = "import genkern; genkern.tune(M=16, N=128, K=256, device='h200', space='tiny.yaml')"
    reply = client.execute_interactive(code, timeout=WAIT_S, output_hook=shown.append)
    assert reply["content"]["status"] == "ok", reply
    said = "".join(str(message["content"]) for message in shown)
    assert "of 1 sizes" in said
    assert "TuningResult(1 winner for NVIDIA H200, predicted" in said


def test_the_stop_button_keeps_what_was_found(kernel: tuple[Any, Any], tmp_path: Path) -> None:
    """The error has the results so far, the kernel goes on, and no process is left."""
    manager, client = kernel
    code = "import genkern; genkern.tune([(m, 4096, 4096) for m in range(1, 100)], device='h200', output='r.yaml')"
    asked = client.execute(code)
    deadline = time.monotonic() + WAIT_S
    while not any("progress.jsonl" in line for line in relatives(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    manager.interrupt_kernel()
    reply = client.get_shell_msg(timeout=WAIT_S)
    while reply["parent_header"].get("msg_id") != asked:
        reply = client.get_shell_msg(timeout=WAIT_S)
    assert reply["content"]["ename"] == "TuningInterrupted"
    assert "99 sizes" in reply["content"]["evalue"]
    assert not any("progress.jsonl" in line for line in relatives(tmp_path))
    shown: list[Any] = []
    code = "import sys; type(sys.last_value.result).__name__"
    client.execute_interactive(code, timeout=WAIT_S, output_hook=shown.append)
    assert any("TuningResult" in str(message["content"]) for message in shown)
