"""The loop of a forked process that answers questions from a pipe, and ends when the asking process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any


def serve(pipe: Connection, inherited: Sequence[Connection], answer_to: Callable[[Any], object]) -> None:
    """For each question from `pipe` send back `answer_to(question)`, or the exception that it raises.

    Ends the process when the other end of the pipe is closed. `inherited` are the parent's ends of pipes, which the
    fork copied: a pipe would stay open as long as this process held them.
    """
    for other in inherited:
        other.close()
    # A terminal or a batch system signals the whole process group; only the driver reacts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        while True:
            question = pipe.recv()
            try:
                answer = answer_to(question)
            except Exception as error:
                answer = error
            pipe.send(answer)
    finally:
        # Not sys.exit: exit handlers and files that the fork copied belong to the parent.
        os._exit(0)
