"""Early: a measured process that starts together with the command, before it is known what to measure.

Importing PyTorch takes most of the time until the first measurement and is the same for all devices and timers, so it
begins before genkern itself is imported and runs concurrently. The initialisation of the driver and the creation of a
context come next. If no option names a device or a timer, they happen early too, on the first visible device.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence

from genkern.profiling.supervisor import StreamChild, SupervisorError
from genkern.python_child import child_environment, module_argv

# Command line of the measured process; its arguments follow.
HARNESS = module_argv("genkern.profiling.harness")
# Prefixes of the options that choose devices or timers (--gpu_ids, --profiler ...), abbreviated or not.
_NAMING = ("--g", "--p")
_SHOWN, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


class EarlyProcess:
    """Holds at most one process. Code that takes the process must end it; `close` ends a process that was not taken.

    A process forked from the one that began it may take it too. Then both close it.
    """

    def __init__(self) -> None:
        self._child: StreamChild | None = None
        self._log: int | None = None
        # The device variables in the environment of a process that creates a context.
        self._device: dict[str, str] | None = None

    def begin(self, arguments: Sequence[str]) -> None:
        """Start the process if nvidia-smi is on PATH; on AMD GPUs a profiler starts the measured process.

        `arguments`: the command's arguments.
        """
        if shutil.which("nvidia-smi") is None:
            return
        environment = child_environment()
        waits = [*HARNESS, "--wait"]
        if not any(argument.startswith(_NAMING) for argument in arguments):
            self._device = _first_device(environment)
            environment |= self._device
            waits.append("--context")
        # The run's folder does not exist yet. A memfd leaves no file behind.
        self._log = os.memfd_create("genkern-harness")
        with contextlib.suppress(SupervisorError):
            child = StreamChild()
            child.start(waits, environment, f"/proc/self/fd/{self._log}")
            self._child = child

    def take(self, argv: Sequence[str], environment: Mapping[str, str]) -> StreamChild | None:
        """Return the process, which continues as HARNESS with these arguments and this environment.

        Returns None if there is no process, if `argv` is another program, if the process has a context of another
        device than the environment selects, or if it has died.
        """
        if self._child is None or tuple(argv[: len(HARNESS)]) != HARNESS:
            return None
        if self._device is not None and not self._device.items() <= environment.items():
            self._end()
            return None
        child, self._child = self._child, None
        try:
            child.send({"argv": list(argv[len(HARNESS) :]), "environment": dict(environment)})
        except SupervisorError:
            child.kill()
            return None
        return child

    def close(self) -> None:
        """End the process unless this process has taken it."""
        self._end()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _first_device(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that select the first visible device, as `measured_process.environment_of` sets them."""
    first, *_ = [*(part.strip() for part in environment.get(_SHOWN, "").split(",") if part.strip()), "0"]
    return {_SHOWN: first, _ORDER: environment.get(_ORDER, "PCI_BUS_ID")}
