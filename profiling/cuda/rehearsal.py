"""Rehearsal: what a measured process does once is done while it waits for the first binaries of its first size.

Loading the kernels of the check, and of a library's algorithms, takes 0.2 to 0.3 s each, which the winner would wait
for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from genkern.profiling.measured_process import REFERENCE_S, MeasuredProcess
from genkern.profiling.supervisor import SupervisorError
from genkern.timing.libraries import AITER
from genkern.timing.session import Session

if TYPE_CHECKING:
    # The command imports this file, and never what runs on a device.
    from genkern.profiling.algorithms import Algorithms

CHECK = "check"


class Rehearsal:
    """Has the process rehearse the check and each of the libraries' `calls` that may win, one when asked."""

    def __init__(self, process: MeasuredProcess, calls: Sequence[str]) -> None:
        self._process = process
        self._calls = calls
        self._left: list[str] | None = None

    def has_gone_on(self, session: Session) -> bool:
        """Whether something was left, which is rehearsed then. A process that is lost by it is started anew."""
        if self._left is None:
            self._left = [CHECK, *(call for call in self._calls if call != AITER and session.budget.may_win(call))]
        if not self._left:
            return False
        try:
            self._process.send({"command": "rehearse", "what": self._left.pop(0)})
            self._process.receive(session.budget.timeout_s + REFERENCE_S)
        except SupervisorError:
            # Whatever it was comes up again where it is known whose fault it is.
            self._left = []
            self._process.lost()
            self._process.open(session)
        return True


def run_each(make: Callable[[], Algorithms], copy: int, failed: Callable[[str, Exception], object]) -> None:
    """Run each algorithm once, with one of the copies of B; `failed` is told of those that do not run."""
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
