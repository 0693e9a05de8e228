"""Forked: what a process does that was forked to answer one question after another, and ends with whoever asks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any


def serve(pipe: Connection, inherited: Sequence[Connection], answer_to: Callable[[Any], object]) -> None:
    """Send `answer_to` each question that comes, or what it raises; ends the process when nobody can ask any more.

    `inherited` are others' ends of pipes that were forked along.
    """
    # Held here they would not end with whoever asks.
    for other in inherited:
        other.close()
    # What a terminal or a batch system sends to the whole group is the driver's to answer.
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
        # Nothing of what was forked is this process's to end.
        os._exit(0)
