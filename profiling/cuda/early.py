"""Early: a measured process that starts with the command, before anybody knows what it is to measure.

Importing PyTorch is most of the way to a first measurement, and the same for all devices and timers: so it begins
before genkern itself is imported, and goes on beside that. The driver's start and a context come next; where options
name neither device nor timer these are made meanwhile, on the device that the run begins with.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence

from genkern.profiling.supervisor import StreamChild, SupervisorError
from genkern.python_child import child_environment, module_argv

# What measures; its arguments come after.
HARNESS = module_argv("genkern.profiling.harness")
# Options that say which devices measure, or how, begin so, shortened or not (--gpu_ids, --profiler ...).
_NAMING = ("--g", "--p")
_SHOWN, _ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


class Early:
    """At most one process. Whoever takes it has it to end; what nobody takes `close` ends.

    A process that was forked of the one in which it began may take it too. Then both close it.
    """

    def __init__(self) -> None:
        self._child: StreamChild | None = None
        self._log: int | None = None
        # What the process with a context has in its environment of devices.
        self._device: dict[str, str] | None = None

    def begin(self, arguments: Sequence[str]) -> None:
        """Start it where NVIDIA's driver is: on AMD's GPUs a profiler starts what is measured. `arguments` are the
        command's.
        """
        if shutil.which("nvidia-smi") is None:
            return
        environment = child_environment()
        waits = [*HARNESS, "--wait"]
        if not any(argument.startswith(_NAMING) for argument in arguments):
            self._device = _first_device(environment)
            environment |= self._device
            waits.append("--context")
        # No folder of the run is there yet, and nothing stays behind in memory.
        self._log = os.memfd_create("genkern-harness")
        with contextlib.suppress(SupervisorError):
            child = StreamChild()
            child.start(waits, environment, f"/proc/self/fd/{self._log}")
            self._child = child

    def taken(self, argv: Sequence[str], environment: Mapping[str, str]) -> StreamChild | None:
        """The process, which goes on as HARNESS with these arguments and this environment.

        None without one, and where `argv` is another program, or the environment another device's than that of which
        it has a context.
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
        """End what was not taken in this process."""
        self._end()
        if self._log is not None:
            os.close(self._log)
            self._log = None

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def _first_device(environment: Mapping[str, str]) -> dict[str, str]:
    """Whose context it is: the first device that is shown, as `measured_process.environment_of` has it."""
    first, *_ = [*(part.strip() for part in environment.get(_SHOWN, "").split(",") if part.strip()), "0"]
    return {_SHOWN: first, _ORDER: environment.get(_ORDER, "PCI_BUS_ID")}
