"""Make the checks of a bundle's calls in several measured processes of one GPU at the same time.

Nothing is timed, so the processes may share the GPU. A check spends most of its time on the CPU, which launches many
small kernels for the reference. Checks of the same problem with the same M go to the same process, one after the other:
they share operands and references.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Protocol

from genkern.errors import BugError, InputError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check
from genkern.packing.proof import Place
from genkern.timing.session import Session

# Each process needs a CPU core and some GiB of the GPU's memory. More processes than this gain little.
_MOST_PROCESSES = 4
# Number of checks for which a further process is worth the seconds of its start.
_CHECKS_PER_PROCESS = 16


class Checks(Protocol):
    """Checks calls on a GPU (SupervisedProfiler)."""

    def check_request(self, session: Session, name: str, request: dict[str, Any]) -> Check: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class WantedCheck:
    """A check to make.

    place: the call that is checked. After a failed check of a call, no further check of it is started.
    problem: the problem with the M of the check. Checks of equal problems share operands and references.
    make: makes the check by a measured process.
    """

    place: Place
    problem: GemmProblem
    make: Callable[[Checks], Check]


Result = tuple[WantedCheck, Check | Exception]


def process_count(checks: int) -> int:
    """Return the number of measured processes for this number of checks."""
    return max(1, min(_MOST_PROCESSES, checks // _CHECKS_PER_PROCESS, (os.cpu_count() or 1) // 2))


def made_checks(wanted: Sequence[WantedCheck], processes: Sequence[Checks]) -> Iterator[Result]:
    """Yield each check with what it returned, or with the exception that it raised, in the order in which they end.

    After an exception other than BugError and InputError, the process makes no further checks. Checks that were not
    started are not yielded.
    """
    by_problem: dict[GemmProblem, list[WantedCheck]] = {}
    for each in wanted:
        by_problem.setdefault(each.problem, []).append(each)
    # The largest M first, so that no process ends long after the others.
    left = sorted(by_problem.values(), key=lambda group: group[0].problem.M)
    stopped, failed = threading.Event(), set[Place]()

    def work(process: Checks) -> tuple[list[Result], bool]:
        """Make the checks of one problem; return their results, and True if the process may continue."""
        results: list[Result] = []
        try:
            group = left.pop()
        except IndexError:
            return results, False
        for each in group:
            if stopped.is_set() or each.place in failed:
                continue
            try:
                check = each.make(process)
            except (BugError, InputError) as error:
                results.append((each, error))
                continue
            except Exception as error:
                return [*results, (each, error)], False
            if not check.passed:
                failed.add(each.place)
            results.append((each, check))
        return results, True

    with ThreadPoolExecutor(len(processes)) as threads:
        running = {threads.submit(work, process): process for process in processes[: len(left)]}
        try:
            while running:
                future = next(as_completed(running))
                process = running.pop(future)
                results, continues = future.result()
                if continues:
                    running[threads.submit(work, process)] = process
                yield from results
        finally:
            # If the caller is interrupted, the running checks end and no others start.
            stopped.set()
