"""The job of a profiled process: what to launch in which order, the paths of its files, and its progress."""

from __future__ import annotations

import dataclasses
import heapq
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.errors import ProfilerError
from genkern.gemm.records import Candidate
from genkern.timing.libraries import ONE_BY_ONE, library_of
from genkern.timing.session import Budget, Session

# tune_gemm launches a config ten times and uses the last time.
_TUNE_GEMM_CALLS = 10
# Symbol of the kernel of fence.py, which is launched before and after each library call.
FENCE = "genkern_fence"
# Names in a job for the library calls that the process itself finds best in a screening, the best first, by library.
PLACES = {library: tuple(f"{library} {place}" for place in range(2)) for library in ONE_BY_ONE["amd"]}


def is_place(name: str) -> bool:
    """Return True if `name` stands for a library call that the process is to find itself."""
    return name in PLACES.get(library_of(name), ())


@dataclass(frozen=True)
class Visit:
    """One turn of a candidate, or of a library call given by its name.

    candidate: the candidate or the name
    calls: number of consecutive calls
    attempt: number of this attempt, from 1
    round: round of the finals, from 0; None in screening
    """

    candidate: Candidate | str
    calls: int
    attempt: int = 1
    round: int | None = None

    @property
    def name(self) -> str:
        return self.candidate if isinstance(self.candidate, str) else self.candidate.config.name

    @property
    def symbols(self) -> tuple[str, ...]:
        """The kernels of one call that have known names; for a library call, the fences around it."""
        if isinstance(self.candidate, str):
            return FENCE, FENCE
        return tuple(binary.symbol for binary in self.candidate.binaries)

    @property
    def entry(self) -> dict[str, object]:
        """The visit as an entry of the job's schedule."""
        own: dict[str, object] = {"binaries": [], "plan": "", "run_time": {}}
        if not isinstance(self.candidate, str):
            said = self.candidate.request
            own = {name: said[name] for name in ("binaries", "codes", "plan", "run_time")}
        return {"config": self.name, **own, "calls": self.calls, "round": self.round}


@dataclass(frozen=True)
class JobPaths:
    """Paths of the files of one profiled process. The profiler's own files have a separate folder, `trace`."""

    folder: str

    @property
    def job(self) -> str:
        return os.path.join(self.folder, "job.json")

    @property
    def launch_log(self) -> str:
        return os.path.join(self.folder, "launch_log.jsonl")

    @property
    def stdout(self) -> str:
        return os.path.join(self.folder, "stdout.txt")

    @property
    def stderr(self) -> str:
        return os.path.join(self.folder, "stderr.txt")

    @property
    def trace(self) -> str:
        return os.path.join(self.folder, "trace")


def screen_calls(budget: Budget) -> int:
    """Return the number of calls of each candidate in the screening pass."""
    if budget.protocol == "tune_gemm":
        return _TUNE_GEMM_CALLS
    return budget.warmup + max(1, budget.screen_launches)


def kept_samples(budget: Budget, durations_us: Sequence[float]) -> tuple[float, ...]:
    """Return the samples of a screening turn that count: the last one for tune_gemm, else all after the warm-up."""
    return tuple(durations_us[-1:] if budget.protocol == "tune_gemm" else durations_us[budget.warmup :])


def final_visits(session: Session, finalists: Sequence[Candidate | str]) -> list[Visit]:
    """Return `final_rounds` rounds over all finalists, library calls included, each round in another order.

    A turn is `warmup` calls and one that counts, so that code and A are as warm as in screening.
    """
    shuffle = random.Random(session.seed)
    order = list(finalists)
    visits = []
    for number in range(session.budget.final_rounds):
        shuffle.shuffle(order)
        visits += [Visit(candidate, session.budget.warmup + 1, round=number) for candidate in order]
    return visits


def spread_symbols(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order the candidates so that neighbours share no kernel symbol if possible.

    Then a dispatch that the profiler loses makes only its own config uncertain. Deterministic: of the eight largest
    groups, takes the next candidate from the largest that shares no symbol with the previous candidate, or from the
    largest of all if each shares one.
    """
    groups: dict[frozenset[str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(frozenset(binary.symbol for binary in candidate.binaries), []).append(candidate)
    heap = [(-len(members), number, symbols) for number, (symbols, members) in enumerate(groups.items())]
    heapq.heapify(heap)
    ordered: list[Candidate] = []
    last: frozenset[str] = frozenset()
    while heap:
        # Kernels such as the split-K reduction are common to many groups, so only a few groups are examined.
        looked_at = [heapq.heappop(heap) for _ in range(min(len(heap), 8))]
        chosen = next((item for item in looked_at if not item[2] & last), looked_at[0])
        size, number, last = chosen
        ordered.append(groups[last][len(groups[last]) + size])
        for item in looked_at:
            if item is not chosen:
                heapq.heappush(heap, item)
        if size < -1:
            heapq.heappush(heap, (size + 1, number, last))
    return ordered


def write_job(session: Session, visits: Sequence[Visit], paths: JobPaths) -> None:
    """Write the job file of the harness. Raises ProfilerError if the folder cannot be written.

    The device has number 0 in the process, since no other device is visible to it.
    """
    seen_by_harness = dataclasses.replace(session, device_index=0, module_path=os.path.abspath(session.module_path))
    job = {
        "mode": "launch",
        "session": json.loads(seen_by_harness.to_json()),
        "launch_log": paths.launch_log,
        "schedule": [visit.entry for visit in visits],
    }
    try:
        os.makedirs(paths.trace, exist_ok=True)
        with open(paths.job, "w") as file:
            json.dump(job, file)
        open(paths.launch_log, "w").close()
    except OSError as error:
        raise ProfilerError(f"cannot write {paths.job}: {error.strerror}; choose another work folder") from error


class LaunchLogWatch:
    """Reports to the supervisor the progress of the launch log, and how long the next line may take.

    A config may take `limit_s`. Starting (import of PyTorch, operands) and ending (writing the trace) may take
    `edge_s`. The log has two lines for each of `visits`, and one clock reading before each of `rounds` and after the
    last.
    """

    def __init__(self, launch_log: str, visits: int, limit_s: float, edge_s: float, rounds: int = 0) -> None:
        self._launch_log = launch_log
        self._lines_at_end = 2 * visits + rounds
        self._limit_s = limit_s
        self._edge_s = edge_s
        self._size = self._lines = 0

    def __call__(self) -> tuple[object, float]:
        try:
            if os.path.getsize(self._launch_log) > self._size:
                with open(self._launch_log, "rb") as log:
                    log.seek(self._size)
                    added = log.read()
                self._size += len(added)
                self._lines += added.count(b"\n")
        except OSError:
            pass  # a network folder may be unavailable for a moment; the time limit decides
        at_edge = self._lines == 0 or self._lines >= self._lines_at_end
        return self._size, self._edge_s if at_edge else self._limit_s
