"""Generated kernels under Triton's interpreter, for tests: a process that runs cases, and problems for any family."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from forms import FORMS

from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.legality import legal

ROOT = Path(__file__).parents[1]
# Programs of the persistent kernels.
UNITS = {"persistent_tma": 2}
INTERPRETED = tuple(stem for stem, traits in FORMS.items() if traits.interpreted)


@dataclass(frozen=True)
class Answer:
    """How far a config is from the module's reference; the rest only where the case asks for it.

    `again` says what is wrong after the call, or with a second one in the same workspace.
    """

    error_ratio: float
    worst_row_error: float
    again: str = ""
    worst_relative_error: float | None = None
    around_is_untouched: bool | None = None


class Interpreter:
    """A process with Triton's interpreter, which keeps the modules of its cases in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cases = 0
        self._lock = threading.Lock()
        self._running: subprocess.Popen[str] | None = None

    @property
    def _process(self) -> subprocess.Popen[str]:
        """The process, or another one in the place of one that has died."""
        if self._running is None or self._running.poll() is not None:
            self._running = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("interpreted_cases.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)},
            )
        return self._running

    def run(
        self,
        problem: GemmProblem,
        config: Config,
        *,
        extra: Mapping[str, int] | None = None,
        positive: bool = False,
        seed: int = 0,
    ) -> Answer:
        """One call of `config`, on operands whose leading dimensions are `extra` (by "a", "b", "c") longer.

        `positive` takes A and B from 0 to 1, and compares with float64 as well. Raises AssertionError with the
        traceback of what the call raises.
        """
        row_major = {"a": problem.row_major_a, "b": problem.row_major_b, "c": True}
        case = {"row_major": row_major, "units": UNITS.get(config.family, 1)}
        return Answer(**self._say(problem, config, case | {"extra": extra, "positive": positive, "seed": seed}))

    def check(
        self,
        problem: GemmProblem,
        config: Config,
        fault: tuple[str, str] = ("", ""),
        arch: str = "any",
        *,
        few_bits: bool = False,
    ) -> dict[str, Any]:
        """The verdict of the check (profiling/checking) on `config`. Raises AssertionError as `run` does.

        `fault` is what stands in the kernel for `arch`, and what stands in its place in a wrong one. With `few_bits`
        sums of fp8 are those of sm_90's matrix units.
        """
        case = {"problem": asdict(problem), "units": UNITS.get(config.family, 3), "few_bits": few_bits}
        return self._say(problem, config, case, fault, arch)

    def rows(self, problem: GemmProblem, config: Config, rows: Sequence[int]) -> list[list[float]]:
        """C of as many rows of a pool as M says, by sm_90's sums of fp8 (ordered_sums.operands_of_rows)."""
        case = {"rows": list(rows), "units": UNITS.get(config.family, 3)}
        said: list[list[float]] = self._say(problem, config, case, arch="sm_90")["c"]
        return said

    def fork(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdout_path: str | os.PathLike[str],
        stderr_path: str | os.PathLike[str],
    ) -> int:
        """The exit status of a program in a fork of the process: a script, or `profiling.checking.interpret`."""
        files = {"out": os.fspath(stdout_path), "errors": os.fspath(stderr_path)}
        said = self._ask({"argv": list(argv), "environment": dict(env), **files})
        assert isinstance(said, int), said
        return os.waitstatus_to_exitcode(said)

    def _say(
        self,
        problem: GemmProblem,
        config: Config,
        case: Mapping[str, object],
        fault: tuple[str, str] = ("", ""),
        arch: str = "any",
    ) -> dict[str, Any]:
        self._cases += 1
        path = self._folder / f"case_{self._cases}.py"
        text = generate(problem, [config], "gfx942" if config.xcd_remap else arch).text
        right, wrong = fault
        assert right in text
        path.write_text(text.replace(right, wrong) if right else text, encoding="utf-8")
        said = self._ask({"path": str(path), "config": config.name, **case})
        assert isinstance(said, dict), said
        return said

    def _ask(self, asked: Mapping[str, object]) -> object:
        with self._lock:
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                process.wait()
            return json.loads(line or '"the interpreter has died"')

    def close(self) -> None:
        if self._running is not None:
            # Compile processes that were forked meanwhile may hold its input open.
            self._running.kill()
            self._running.communicate()


def takes(problem: GemmProblem, config: Config, arch: str = "sm_90") -> bool:
    """Whether the config computes this problem at all."""
    return not legal(problem, config, gpu_for_arch(arch))


def fitted(problem: GemmProblem, config: Config) -> GemmProblem:
    """`problem` with as little changed as it takes for `config` to compute it."""

    def up(size: int) -> int:
        return -(-size // 16) * 16

    repairs = (
        {"M": up(problem.M), "N": up(problem.N), "K": up(problem.K)},
        {"row_major_a": True, "row_major_b": False},
        {"M": 1},
        {"op": "a16w16", "dtype_a": "fp16", "dtype_b": "fp16"},
        # What is there to be realigned.
        {"M": problem.M | 1, "row_major_a": False},
    )
    for count in range(len(repairs) + 1):
        for chosen in combinations(repairs, count):
            changes: dict[str, object] = {}
            for repair in chosen:
                changes |= repair
            changed = replace(problem, **changes)  # type: ignore[arg-type]
            if takes(changed, config):
                return changed
    raise ValueError(f"{config.name} takes nothing that is near {problem.name}")
