"""Steps of a first run: processes with time limits, whose results are stored, so that a rerun resumes."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from genkern.file_io import write_whole
from genkern.profiling.supervisor import SupervisorError, run_supervised
from genkern.python_child import child_environment, module_argv

# Time that a tuning run needs to write its results when its time is over.
_GRACE_S = 15.0
# PyTorch's first import from a slow disk takes some 20 seconds.
_START_S = 45.0
# Share of a tuning step's time for searches: the rest is for starts, finals, checks and a fit.
_OF_SEARCHES = 0.7
DONE, FAILED, LATE, LEFT_OUT = "done", "failed", "out of time", "left out"
_MOST_SAID = 200_000


@dataclass(frozen=True)
class Step:
    """One process of a first run.

    name: its name, also of its files
    title: what it shows, for the report
    argv: arguments of Python
    limit_s: its time limit in seconds
    may_fail_by_one: exit status 1 is a finding, not a failure
    reads: paths of its input files; if they change, it counts as another step
    sizes: number of sizes that it tunes; each gets a part of the step's time for its search (--budget)
    """

    name: str
    title: str
    argv: tuple[str, ...]
    limit_s: float
    may_fail_by_one: bool = True
    reads: tuple[str, ...] = ()
    sizes: int = 0

    def argv_within(self, limit_s: float) -> tuple[str, ...]:
        """Return the arguments for a run of at most `limit_s` seconds: with a --budget if the step tunes sizes."""
        if not self.sizes:
            return self.argv
        return (*self.argv, "--budget", f"{max(1.0, limit_s * _OF_SEARCHES / self.sizes):.1f}s")

    def digest(self) -> str:
        """Return the digest of its input files as they are now; "" if it has none."""
        if not self.reads:
            return ""
        found = hashlib.sha256()
        for path in map(Path, self.reads):
            found.update(hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"-")
        return found.hexdigest()


@dataclass(frozen=True)
class StepResult:
    """How a step ended.

    state: DONE, FAILED, LATE or LEFT_OUT
    said: why it was left out, or how its process ended if not with exit status 0
    seconds: how long it took
    status: exit status of its process; -1 if unknown
    argv: the step's arguments
    read: digest of its input files when it began
    """

    name: str
    state: str
    said: str
    seconds: float
    status: int
    argv: tuple[str, ...]
    read: str = ""


class StepFolder:
    """The folder with the results and outputs of steps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept = folder / "steps"
        self._kept.mkdir(parents=True, exist_ok=True)

    def output(self, name: str) -> str:
        """Return the standard output of a step's process; "" if there is none."""
        return _end_of_file(self._streams(name)[0])

    def errors(self, name: str) -> str:
        """Return the standard error of a step's process; "" if there is none."""
        return _end_of_file(self._streams(name)[1])

    def ended(self, step: Step) -> StepResult | None:
        """Return how the same step ended in an earlier run; None if it was not run, or the file is damaged.

        A step is the same if its arguments and the contents of its input files are.
        """
        try:
            said = json.loads(self._end_of(step.name).read_text(encoding="utf-8"))
            found = StepResult(**{**said, "argv": tuple(said["argv"])})
            is_same = found.argv == step.argv and found.read == step.digest()
            return found if is_same and found.state in (DONE, FAILED, LATE) else None
        except (OSError, ValueError, TypeError, LookupError):
            return None

    def run(self, step: Step, limit_s: float, *, now: Callable[[], float] = time.monotonic) -> StepResult:
        """Run the step for at most `limit_s` seconds, and store how it ended. Never raises for its process."""
        stdout, stderr = self._streams(step.name)
        started_s, read = now(), step.digest()
        try:
            ended = run_supervised(
                _program(step.argv_within(limit_s)),
                env=child_environment(),
                timeout_s=limit_s,
                grace_s=_GRACE_S,
                stdout_path=stdout,
                stderr_path=stderr,
            )
        except SupervisorError as error:
            return self._keep(step, FAILED, str(error), now() - started_s, -1, read)
        is_done = ended.returncode == 0 or (ended.returncode == 1 and step.may_fail_by_one)
        state = LATE if ended.timed_out else DONE if is_done else FAILED
        said = "" if ended.returncode == 0 and not ended.timed_out else f"{ended.description}; {ended.last_line}"
        status = -1 if ended.returncode is None else ended.returncode
        return self._keep(step, state, said.strip("; "), now() - started_s, status, read)

    def leave_out(self, step: Step, why: str) -> StepResult:
        """Store that the step was not run."""
        return self._keep(step, LEFT_OUT, why, 0.0, 0, step.digest())

    def _keep(self, step: Step, state: str, said: str, seconds: float, status: int, read: str) -> StepResult:
        ended = StepResult(step.name, state, said, round(seconds, 1), status, step.argv, read)
        write_whole(str(self._end_of(step.name)), json.dumps(asdict(ended), indent=2) + "\n")
        return ended

    def _end_of(self, name: str) -> Path:
        return self._kept / f"{name}.json"

    def _streams(self, name: str) -> tuple[Path, Path]:
        return self._kept / f"{name}.out.txt", self._kept / f"{name}.err.txt"


def _program(argv: Sequence[str]) -> Sequence[str]:
    """Return the command line of a step.

    For `-m MODULE`, Python runs the module without the current folder on sys.path. Other arguments go to Python as they
    are.
    """
    return module_argv(*argv[1:]) if argv[0] == "-m" else (sys.executable, *argv)


def _end_of_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")[-_MOST_SAID:]
    except OSError:
        return ""


def genkern_step(
    name: str, title: str, argv: Sequence[str], limit_s: float, reads: Sequence[Path] = (), sizes: int = 0
) -> Step:
    """Return a step that is a command of genkern, whose exit status 1 means a finding."""
    return Step(name, title, ("-m", "genkern", *argv), limit_s, reads=tuple(map(str, reads)), sizes=sizes)


def limit_of(step: Step, left_s: float, later: Sequence[Step]) -> float:
    """Return the seconds that a step may take of the `left_s` seconds left for it and the `later` steps.

    Time is divided in proportion to the steps' limits, which are not exceeded; unused time goes to later steps. Each
    step gets at least some seconds to start.
    """
    part_s = left_s * step.limit_s / (step.limit_s + sum(each.limit_s for each in later))
    return min(step.limit_s, max(part_s, min(_START_S, left_s / 8)))
