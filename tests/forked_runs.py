"""Runs the command again and again, each time in a fresh process, and kills it when told to.

A program: it has imported genkern, so that a run costs a fork and not a second of imports. Lines on standard input
are [argv, kill_after_s or null]; each is answered with [wait status, how long the last process below it outlived it].
Processes that a killed command leaves behind come to this one, which waits for the end of each.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import tempfile
import time

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_MOST_S = 30.0


def main() -> None:
    import genkern.__main__
    import genkern.cli.run
    import genkern.cli.status

    del genkern.cli.run, genkern.cli.status
    # Python finds out once by writing a file, which a kill at that moment would leave.
    tempfile.gettempdir()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        argv, kill_after_s = json.loads(line)
        command = os.fork()
        if command == 0:
            os.setsid()
            with open(os.devnull, "r+b") as null:
                os.dup2(null.fileno(), 0)
                os.dup2(null.fileno(), 1)
            status = genkern.__main__.main(argv)
            sys.stdout.flush()
            os._exit(status)
        print(json.dumps(wait(command, kill_after_s)), flush=True)


def wait(command: int, kill_after_s: float | None) -> tuple[int, float]:
    """Until no process is left."""
    started_s = time.monotonic()
    status, ended_s = None, 0.0
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            assert status is not None
            return status, time.monotonic() - ended_s
        now_s = time.monotonic()
        if pid == command:
            status, ended_s = ended, now_s
        elif pid == 0:
            if status is None and kill_after_s is not None and now_s - started_s >= kill_after_s:
                os.kill(command, signal.SIGKILL)
                kill_after_s = None
            assert now_s - started_s < _MOST_S, "a process is left behind"
            time.sleep(0.001)


if __name__ == "__main__":
    main()
