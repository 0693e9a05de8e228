"""Judges: processes that judge mutants and kernels without a fault, several at once, each case after case."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue

from benchmarks.checking.mutant_cases import Case
from genkern.profiling.measured_process import loss
from genkern.profiling.supervisor import ChildTimedOut, StreamChild, SupervisorError

# For one case, by whether there is a GPU: compiling and all rounds.
_CASE_S = {True: 40.0, False: 300.0}
# Importing PyTorch and Triton, on a machine whose every core does so.
_START_S = 180.0


@dataclass(frozen=True)
class Judged:
    """What became of a case.

    "passed" and "wrong" are verdicts. "fault": the device faulted, or the process died. "refused": the compiler's
    result, or the launch, was refused, and the device still works. "hang": no verdict in time. "invalid": a mutant that
    is none, since it does not compile.
    """

    case: Case
    outcome: str
    message: str


class Judge:
    """One process at a time, and another when it is lost.

    Mutants share processes: what a case leaves behind is compiled code alone, since tensors end with it, and what is
    written beyond C goes to guard bands of 64 KiB at least. Kernels without a fault get a process that had no mutant.
    """

    def __init__(self, folder: Path, arch: str, on_gpu: bool) -> None:
        """Modules and the processes' standard error go to `folder`."""
        folder.mkdir()
        self._folder, self._arch, self._on_gpu = folder, arch, on_gpu
        self._child: StreamChild | None = None
        self._had_mutants = False
        self._cases = 0

    def judged(self, case: Case) -> Judged:
        """Its verdict. Raises SupervisorError when no process comes as far as to judge."""
        if not case.fault and self._had_mutants:
            self.close()
        fresh = self._child is None
        judged = self._ask(case)
        if judged.outcome == "fault" and not self._on_gpu and not fresh:
            # Without a device of its own, what the last mutant wrote may have ended the process of this one.
            judged = self._ask(case)
        return judged

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
        self._child, self._had_mutants = None, False

    def _ask(self, case: Case) -> Judged:
        child = self._child = self._child or self._started()
        self._had_mutants |= bool(case.fault)
        self._cases += 1
        path = self._folder / f"module_{self._cases}.py"
        asked = {"problem": asdict(case.problem), "config": case.config.name, "text": case.text}
        try:
            child.send({**asked, "path": str(path), "arch": self._arch})
            answer = child.receive(_CASE_S[self._on_gpu])
        except SupervisorError as error:
            self.close()
            return Judged(case, "hang" if isinstance(error, ChildTimedOut) else "fault", loss(error)[1])
        finally:
            path.unlink(missing_ok=True)
        if answer["outcome"] == "fault":
            self.close()
        return Judged(case, answer["outcome"], answer["message"])

    def _started(self) -> StreamChild:
        environment = {**os.environ, "TRITON_CACHE_DIR": str(self._folder.parent / "triton"), "OMP_NUM_THREADS": "2"}
        if not self._on_gpu:
            environment["TRITON_INTERPRET"] = "1"
        environment["PYTHONPATH"] = os.pathsep.join(part for part in sys.path if part)
        child = StreamChild()
        argv = [sys.executable, str(Path(__file__).with_name("judge.py"))]
        child.start(argv, environment, self._folder / "stderr.log")
        try:
            child.receive(_START_S)
        except SupervisorError:
            child.kill()
            raise
        return child


def judge(
    cases: Sequence[Case], arch: str, on_gpu: bool, jobs: int, until_s: float, tick_s: float = 10.0
) -> Iterator[Judged | None]:
    """Each case as soon as it is judged, by `jobs` processes, and None when for `tick_s` there was none.

    No case is begun after `until_s` of time.monotonic(). Raises SupervisorError when nothing can be judged.
    """
    pending = deque(cases)
    done: Queue[Judged | BaseException | None] = Queue()

    def work(judge: Judge) -> None:
        try:
            while time.monotonic() < until_s and pending:
                try:
                    case = pending.popleft()
                except IndexError:
                    break
                done.put(judge.judged(case))
        except BaseException as error:
            done.put(error)
        finally:
            judge.close()
            done.put(None)

    with tempfile.TemporaryDirectory(prefix="mutants_", ignore_cleanup_errors=True) as folder:
        judges = [Judge(Path(folder) / str(number), arch, on_gpu) for number in range(min(jobs, len(cases)))]
        # Whoever interrupts waits for no verdict: processes end with this one.
        for each in judges:
            threading.Thread(target=work, args=(each,), daemon=True).start()
        at_work = len(judges)
        while at_work:
            try:
                item = done.get(timeout=tick_s)
            except Empty:
                yield None
                continue
            if isinstance(item, BaseException):
                pending.clear()
                raise item
            if item is None:
                at_work -= 1
            else:
                yield item
