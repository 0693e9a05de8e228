"""Rehearsal: one-time work of a measured process, done while it waits for the first binaries of its first size.

Loading the kernels of the check, and of a library's algorithms, takes 0.2 to 0.3 s each, for which the winner would
otherwise wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genkern.profiling.measured_process import REFERENCE_S, MeasuredProcess
from genkern.profiling.supervisor import SupervisorError
from genkern.timing.libraries import AITER
from genkern.timing.session import Session

if TYPE_CHECKING:
    # The command imports this module, and must not import what runs on a device.
    from genkern.profiling.algorithms import Algorithms

CHECK = "check"


class Rehearsal:
    """Has the process run the check, and each library in `calls` that may win except AITER, one step at a time."""

    def __init__(self, process: MeasuredProcess, calls: Sequence[str]) -> None:
        self._process = process
        self._calls = calls
        self._left: list[str] | None = None

    def has_gone_on(self, session: Session) -> bool:
        """Rehearse the next step; return False if none was left. A lost process is replaced, and no step follows."""
        if self._left is None:
            self._left = [CHECK, *(call for call in self._calls if call != AITER and session.budget.may_win(call))]
        if not self._left:
            return False
        try:
            self._process.send({"command": "rehearse", "what": self._left.pop(0)})
            self._process.receive(session.budget.timeout_s + REFERENCE_S)
        except SupervisorError:
            # If the fault recurs in a real request, its cause is known there.
            self._left = []
            self._process.lost()
            self._process.open(session)
        return True


def run_each(make: Callable[[], Algorithms], copy: int, failed: Callable[[str, Exception], object]) -> None:
    """Run each algorithm once with this copy of B. `failed` receives the errors."""
    import torch

    name = "algorithms"
    try:
        algorithms = make()
        for name in algorithms.names():
            try:
                algorithms.call(name)(copy)
                torch.cuda.synchronize()
            except Exception as error:
                failed(name, error)
    except Exception as error:
        failed(name, error)
