"""Early: a measured process that starts with the command, before anybody knows what it is to measure.

Importing PyTorch is most of the way to a first measurement, and the same for all devices and timers: so it begins
before genkern itself is imported, and goes on beside that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from genkern.profiling.supervisor import StreamChild, SupervisorError

# What measures; its arguments come after.
HARNESS = (sys.executable, "-m", "genkern.profiling.harness")


class Early:
    """At most one process. Whoever takes it has it to end; what nobody takes `close` ends.

    A process that was forked of the one in which it began may take it too. Then both close it.
    """

    def __init__(self) -> None:
        self._child: StreamChild | None = None
        self._log: int | None = None

    def begin(self) -> None:
        """Start it where NVIDIA's driver is: on AMD's GPUs a profiler starts what is measured."""
        if shutil.which("nvidia-smi") is None:
            return
        # No folder of the run is there yet, and nothing stays behind in memory.
        self._log = os.memfd_create("genkern-harness")
        with contextlib.suppress(SupervisorError):
            child = StreamChild()
            child.start((*HARNESS, "--wait"), python_environment(), f"/proc/self/fd/{self._log}")
            self._child = child

    def taken(self, argv: Sequence[str], environment: Mapping[str, str]) -> StreamChild | None:
        """The process, which goes on as HARNESS with these arguments and this environment.

        None without one, and where `argv` is another program.
        """
        if self._child is None or tuple(argv[: len(HARNESS)]) != HARNESS:
            return None
        child, self._child = self._child, None
        try:
            child.send({"argv": list(argv[len(HARNESS) :]), "environment": dict(environment)})
        except SupervisorError:
            child.kill()
            return None
        return child

    def close(self) -> None:
        """End what was not taken in this process."""
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._log is not None:
            os.close(self._log)
            self._log = None


def python_environment() -> dict[str, str]:
    """This process's environment, in which another Python finds what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
