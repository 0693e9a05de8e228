"""What is told of a program's end, when its watcher is killed with the rest of its group (profiling/supervisor.py)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from genkern.profiling import supervisor
from genkern.profiling.supervisor import ChildDied, StreamChild, run_supervised

_SLOW_GUARD = """
import importlib.util, time
spec = importlib.util.spec_from_file_location("guard", {guard!r})
guard = importlib.util.module_from_spec(spec)
spec.loader.exec_module(guard)
end = guard._exit_as
guard._exit_as = lambda status: (time.sleep(1), end(status))
guard.main()
"""


@pytest.mark.parametrize(("end", "returncode"), [("os.abort()", -signal.SIGABRT), ("sys.exit(3)", 3)])
def test_a_watcher_that_is_killed_before_it_ends_has_said_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, returncode: int
) -> None:
    """On a busy machine the signal for the rest of the group meets the watcher before it ends as its program did."""
    slow = tmp_path / "guard.py"
    slow.write_text(_SLOW_GUARD.format(guard=supervisor._GUARD))
    monkeypatch.setattr(supervisor, "_GUARD", str(slow))
    program, env = [sys.executable, "-c", f"import os, sys; {end}"], dict(os.environ)
    out, err = tmp_path / "out", tmp_path / "err"
    ended = run_supervised(program, env=env, timeout_s=20.0, grace_s=5.0, stdout_path=out, stderr_path=err)
    assert ended.returncode == returncode
    with StreamChild() as child:
        child.start(program, env, err)
        with pytest.raises(ChildDied) as caught:
            child.receive(10.0)
    assert caught.value.exit.returncode == returncode
