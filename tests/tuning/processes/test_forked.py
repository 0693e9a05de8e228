"""A forked process answers one question after another, and is gone with the last who could ask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
from processes import assert_gone

from genkern.tuning.processes.forked import serve


def test_each_question_has_an_answer_and_the_end_of_the_pipe_is_the_end() -> None:
    """What is raised is an answer too."""
    context = get_context("fork")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, [pipe], lambda number: 12 // number), daemon=True)
    process.start()
    theirs.close()
    try:
        for question, answer in ((3, 4), (0, ZeroDivisionError), (6, 2)):
            pipe.send(question)
            said = pipe.recv()
            assert said == answer or type(said) is answer
        pipe.close()
        process.join(10)
        assert process.exitcode == 0
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("make", "processes"),
    [
        ("from genkern.tuning.processes.crew import Crew; crew = Crew(3)", "crew._processes"),
        (
            "from genkern.tuning.processes.foresight import foresights as f; of = f(2, 2, None); both = of.__enter__()",
            "[one._process for one in both]",
        ),
    ],
    ids=["crew", "foresight"],
)
def test_they_end_with_whoever_asks(make: str, processes: str, tmp_path: Path) -> None:
    """Also by SIGKILL, and where another such process was forked after it."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    program = f"import os, signal\n{make}\nprint({{one.is_alive() for one in {processes}}}, flush=True)\n{kill}"
    environment = {**os.environ, "GENKERN_TEST": str(tmp_path)}
    asking = [sys.executable, "-c", program]
    done = subprocess.run(asking, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "{True}\n")
    assert_gone(tmp_path)
