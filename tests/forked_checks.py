"""Checks under Triton's interpreter that cost a fork each, for tests in which the check's own process is no matter.

A process that imports PyTorch and Triton takes two seconds until it can check anything. This one has imported both:
lines on standard input are [argv, environment, standard output, standard error], each answered with a wait status.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

from genkern.profiling.supervisor import Exit, tail

_ROOT = Path(__file__).parents[1]
_MODULE = "genkern.profiling.interpret"


class ForkedChecks:
    """Stands in for genkern.profiling.supervisor.run_supervised where that starts the interpreter."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(_ROOT)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen([sys.executable, __file__], env=environment, text=True, **pipes)  # type: ignore[call-overload]

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdout_path: str | os.PathLike[str],
        stderr_path: str | os.PathLike[str],
        **_limits: object,
    ) -> Exit:
        """How the check ended; there is no limit of time."""
        python, option, module, *values = argv
        assert (python, option, module) == (sys.executable, "-m", _MODULE)
        asked = [values, dict(env), os.fspath(stdout_path), os.fspath(stderr_path)]
        with self._lock:
            print(json.dumps(asked), file=self._process.stdin, flush=True)
            status = json.loads(self._process.stdout.readline())
        return Exit(os.waitstatus_to_exitcode(status), False, 0.0, tail(stderr_path))

    def close(self) -> None:
        """End the process: compile processes that were forked meanwhile may hold its input open."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Import what a check needs, then fork for each."""
    import torch
    import triton
    from fast_interpreter import make_interpreter_fast

    from genkern.profiling import interpret

    del torch, triton
    make_interpreter_fast()
    for line in sys.stdin:
        values, environment, out, errors = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for number, path in enumerate((os.devnull, out, errors)):
                    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
                    os.dup2(os.open(path, flags, 0o600), number)
                os.environ.clear()
                os.environ.update(environment)
                interpret.main(values)
                status = 0
            except BaseException:  # as the interpreter itself does at its end
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        print(json.dumps(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
