"""What a profiled process is told to launch, in which order, where its files lie, and how far it has come."""

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

# tune_gemm launches a config ten times and takes the last time.
_TUNE_GEMM_CALLS = 10
# The kernel of fence.py, which is launched before and after each call of a library.
FENCE = "genkern_fence"
# Names in a job, by library, for those of its calls that come out best in a screening by the process itself, the best
# first.
PLACES = {library: tuple(f"{library} {place}" for place in range(2)) for library in ONE_BY_ONE["amd"]}


def is_place(name: str) -> bool:
    """Whether a job has it for a call that is to be found."""
    return name in PLACES.get(library_of(name), ())


@dataclass(frozen=True)
class Visit:
    """One turn of a candidate, or of a library's call by its name: `calls` consecutive calls. `attempt` counts from 1.

    `round` is that of the finals, from 0; None in the screening.
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
        """The kernels of one call that are known by name; of the library's, the fences around it."""
        if isinstance(self.candidate, str):
            return FENCE, FENCE
        return tuple(binary.symbol for binary in self.candidate.binaries)

    @property
    def entry(self) -> dict[str, object]:
        """What the job says of it."""
        own: dict[str, object] = {"binaries": [], "plan": "", "run_time": {}}
        if not isinstance(self.candidate, str):
            said = self.candidate.request
            own = {name: said[name] for name in ("binaries", "codes", "plan", "run_time")}
        return {"config": self.name, **own, "calls": self.calls, "round": self.round}


@dataclass(frozen=True)
class JobPaths:
    """Every file of one profiled process. The trace has a folder of its own, so that any file in it is a trace."""

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
    """Calls of each candidate in the screening pass."""
    if budget.protocol == "tune_gemm":
        return _TUNE_GEMM_CALLS
    return budget.warmup + max(1, budget.screen_launches)


def kept_samples(budget: Budget, durations_us: Sequence[float]) -> tuple[float, ...]:
    """The samples of a screening turn that count: the last one for tune_gemm, else all after the warm-up."""
    return tuple(durations_us[-1:] if budget.protocol == "tune_gemm" else durations_us[budget.warmup :])


def final_visits(session: Session, finalists: Sequence[Candidate | str]) -> list[Visit]:
    """`final_rounds` rounds over all finalists, calls of libraries by name among them, each in another order.

    A turn is `warmup` calls and the one that counts, so that code and operands of A are as warm as in screening.
    """
    shuffle = random.Random(session.seed)
    order = list(finalists)
    visits = []
    for number in range(session.budget.final_rounds):
        shuffle.shuffle(order)
        visits += [Visit(candidate, session.budget.warmup + 1, round=number) for candidate in order]
    return visits


def spread_symbols(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Order the candidates so that neighbours share no kernel symbol where that is possible.

    Then a dispatch that the profiler loses makes only its own config uncertain. Deterministic; takes from the
    largest group that differs from the last one taken.
    """
    groups: dict[frozenset[str], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(frozenset(binary.symbol for binary in candidate.binaries), []).append(candidate)
    heap = [(-len(members), number, symbols) for number, (symbols, members) in enumerate(groups.items())]
    heapq.heapify(heap)
    ordered: list[Candidate] = []
    last: frozenset[str] = frozenset()
    while heap:
        # Kernels such as the split-K reduction are common to many groups: look a few groups further, not at all.
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
    """Write the job file of the harness. Raises ProfilerError when the folder cannot be written.

    The device is number 0 for the process, since no other is visible to it.
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
    """Tells the supervisor how far the launch log has come, and how long the next line may take.

    A config gets `limit_s`. Starting (import of PyTorch, operands) and ending (writing the trace) get `edge_s`.
    The log has two lines for each of `visits`, and one of the clock before each of `rounds`.
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
            pass  # a network folder that is away for a moment; the limit decides
        at_edge = self._lines == 0 or self._lines >= self._lines_at_end
        return self._size, self._edge_s if at_edge else self._limit_s
