"""Checks under Triton's interpreter that cost a fork each, for tests in which the check's own process is no matter.

A process that imports PyTorch and Triton takes two seconds until it can check anything. That of tests/interpreted.py
has imported both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from interpreted import Interpreter

from genkern.profiling.supervisor import Exit, tail
from genkern.python_child import module_argv


class ForkedChecks:
    """Stands in for genkern.profiling.supervisor.run_supervised where that starts the interpreter."""

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter

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
        start = module_argv("")[:-1]
        assert tuple(argv[: len(start)]) == start
        program = argv[len(start) :]
        code = self._interpreter.fork(program, env, stdout_path, stderr_path)
        return Exit(code, False, 0.0, tail(stderr_path))
