"""Checks of a config's output: on the GPU, or without one under Triton's interpreter on a reduced size."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from genkern.errors import BugError
from genkern.file_io import write_whole
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Check, Outcome
from genkern.kernels.catalogue import traits_of
from genkern.kernels.generate import generate
from genkern.ops.op import get_op, groups_of
from genkern.profiling.measured_process import check_of_answer
from genkern.profiling.supervisor import Exit, run_supervised
from genkern.python_child import child_environment, module_argv
from genkern.timing.session import TOLERANCE, Budget, Session

# Limits of reduced sizes: the interpreter computes about 2e8 multiply-adds per second, and each tile takes some
# milliseconds.
_INTERPRETED_K_BLOCKS = 3
_INTERPRETED_BATCH = 3
_INTERPRETED_GROUPS = 4
_INTERPRETER_TIMEOUT_S = 300.0
DeviceCheck = Callable[[Session, Candidate], Check]
CallCheck = Callable[[Session, str], Check]


class RowChecker(Protocol):
    """Compares rows of C bit by bit."""

    def check(self, session: Session, name: str, candidate: Candidate | None, reference: Candidate | None) -> Check:
        """Check that rows of C have the same bits in all calls, and the same bits as the rows of `reference`.

        The calls are those of `candidate`, or of the library call `name` if that is None. Without a `reference` (None)
        only the calls are compared.
        """

    def alike(self, session: Session, calls: Sequence[str], candidates: Sequence[Candidate]) -> dict[str, str]:
        """Return, by library call, the name of the first candidate whose rows have the same bits as the call's."""


class Checker(Protocol):
    """Checks whether a candidate computes the product of its problem.

    quick: True if a further check of a size takes little time, so that the runner-up is checked too
    rows: compares rows bit by bit; None if this is not possible
    """

    quick: bool
    rows: RowChecker | None

    def can_check(self, config: Config) -> bool:
        """Return whether `check` can check this config."""

    def check(self, session: Session, candidate: Candidate) -> Check: ...

    def check_call(self, session: Session, name: str) -> Check:
        """Check a library call that took part in the finals, by its name there."""


class DeviceChecker:
    """Checks on the GPU, with the very binaries that were measured.

    `err_ratio` is the largest share of elements outside AITER's tolerance; 1 adds no limit to the check itself.
    """

    quick = True

    def __init__(
        self, device_check: DeviceCheck, call_check: CallCheck, err_ratio: float = 1.0, rows: RowChecker | None = None
    ) -> None:
        self.rows = rows
        self._device_check = device_check
        self._call_check = call_check
        self._err_ratio = err_ratio

    def can_check(self, config: Config) -> bool:
        return True

    def check(self, session: Session, candidate: Candidate) -> Check:
        return with_tolerance(self._device_check(session, candidate), self._err_ratio, session.budget)

    def check_call(self, session: Session, name: str) -> Check:
        return with_tolerance(self._call_check(session, name), self._err_ratio, session.budget)


class InterpreterChecker:
    """Checks without a GPU: runs the generated kernels under Triton's interpreter, in a separate process.

    The size is reduced to a few tiles that overhang in the same way, so that the same kernel text runs. Results name
    the reduced size (`Check.problem_size`). Needs PyTorch and NumPy.
    """

    # Each check starts a process, which takes seconds.
    quick = False
    # The interpreter does not compute with the GPU's instructions, so bits of its rows prove nothing.
    rows: RowChecker | None = None

    def __init__(self, err_ratio: float = 1.0) -> None:
        self._err_ratio = err_ratio
        self._closed = threading.Event()

    def can_check(self, config: Config) -> bool:
        """Return False for kernels that the interpreter cannot run, such as Gluon kernels."""
        return traits_of(config).interpreted

    def check(self, session: Session, candidate: Candidate) -> Check:
        """Check a candidate. Thread-safe."""
        config = candidate.config
        if not self.can_check(config):
            size, why = session.problem.size, f"{config.family} kernels can be checked on a GPU only"
            return Check(config.name, False, 1.0, math.inf, size, NOT_CHECKED, why)
        problem = reduced_problem(session.problem, config)
        module = generate(problem, [config], session.arch)
        with tempfile.TemporaryDirectory(prefix="interpreted_", dir=session.work_dir) as folder:
            path = Path(folder).resolve() / module.file_name
            write_whole(str(path), module.text)
            return self._run(path, problem, config, session.budget)

    def check_call(self, session: Session, name: str) -> Check:
        """Return a check that says that library calls run on a GPU only."""
        return Check(name, False, 1.0, math.inf, session.problem.size, NOT_CHECKED, "it runs on a GPU only")

    def close(self) -> None:
        """End the checks that run in other threads; their results are unknown (`Check.lost`)."""
        self._closed.set()

    def trial(self, work_dir: str) -> str:
        """Run a fixed kernel that no template generates. Return why the interpreter does not work here, or ""."""
        with tempfile.TemporaryDirectory(prefix="interpreted_", dir=work_dir) as folder:
            ended, answer = self._ended(["genkern.profiling.checking.interpreter_trial"], Path(folder))
        if answer is None:
            return ended.last_line or ended.description
        return str(answer)

    def _ended(self, argv: Sequence[str], folder: Path) -> tuple[Exit, Any]:
        """Run a module under the interpreter; return its exit and the JSON of its last line (None on failure)."""
        environment = {**child_environment(), "TRITON_INTERPRET": "1"}
        out = folder / "answer"
        ended = run_supervised(
            module_argv(*argv),
            env=environment,
            timeout_s=_INTERPRETER_TIMEOUT_S,
            grace_s=0.0,
            stdout_path=out,
            stderr_path=folder / "errors",
            watch=lambda: (None, 0.0 if self._closed.is_set() else math.inf),
        )
        if ended.timed_out or ended.was_lost or ended.returncode != 0:
            return ended, None
        return ended, json.loads(out.read_text().splitlines()[-1])

    def _run(self, path: Path, problem: GemmProblem, config: Config, budget: Budget) -> Check:
        values = json.dumps(dataclasses.asdict(problem))
        words = [str(path), config.name, values, repr(budget.atol), repr(budget.rtol)]

        def failed(message: str, lost: Outcome | None = None) -> Check:
            method = NOT_CHECKED if lost else "interpreter"
            return Check(config.name, False, 1.0, float("inf"), problem.size, method, message[:300], lost)

        ended, answer = self._ended(["genkern.profiling.checking.interpret", *words], path.parent)
        if ended.timed_out:
            return failed(f"the interpreter had no result after {_INTERPRETER_TIMEOUT_S:g} s", Outcome.TIMED_OUT)
        if ended.was_lost:
            return failed(f"the interpreter was lost: {ended.description}", Outcome.CRASHED)
        if answer is None:
            return failed(f"the interpreter failed: {ended.last_line or ended.description}")
        if "bug" in answer:
            raise BugError(f"interpreting {config.name}: {answer['bug']}", answer["details"])
        check = with_tolerance(
            check_of_answer(config.name, problem.size, "interpreter", answer), self._err_ratio, budget
        )
        same = check.lost is not None or answer["dtype_a"] == DTYPES[problem.dtype_a].torch
        return dataclasses.replace(check, stand_in="" if same else parse_dtype(answer["dtype_a"], "").name)


def with_tolerance(check: Check, err_ratio: float, budget: Budget) -> Check:
    """Return `check`, changed to failed if its error ratio is above `err_ratio`."""
    if not check.passed or check.error_ratio <= err_ratio:
        return check
    message = f"error ratio {check.error_ratio:.3g} is above --errRatio {err_ratio:g}"
    if (budget.atol, budget.rtol) != (TOLERANCE, TOLERANCE):
        message += f" with --atol {budget.atol:g} --rtol {budget.rtol:g}"
    return dataclasses.replace(check, passed=False, message=message)


def reduced_problem(problem: GemmProblem, config: Config) -> GemmProblem:
    """Return a problem of about two tiles in M and N and a few blocks of K; it overhangs exactly where `problem` does.

    If several elements share a scale, the blocks that share one are whole, or overhang, as in `problem`.
    """
    rows, columns, along_k = get_op(problem.op).shared_scale(problem)
    k_blocks = _INTERPRETED_K_BLOCKS * max(1, config.SPLIT_K // 2)
    return dataclasses.replace(
        _few_products(problem, config),
        M=_shrink(problem.M, config.BLOCK_SIZE_M, 1, rows),
        N=_shrink(problem.N, config.BLOCK_SIZE_N, 1, columns),
        K=_shrink(problem.K, config.BLOCK_SIZE_K, k_blocks, along_k),
    )


def _few_products(problem: GemmProblem, config: Config) -> GemmProblem:
    """Return the problem with fewer products in a batch, or with fewer groups of fewer rows."""
    if (groups := groups_of(problem)) is None:
        return problem.with_most(batch_size=_INTERPRETED_BATCH)
    few, rows = max(_INTERPRETED_GROUPS, groups.top_k), 2 * config.BLOCK_SIZE_M + 1
    return problem.with_most(groups=few, experts=few, capacity=rows)


def _shrink(size: int, block: int, blocks: int, shared: int) -> int:
    """Return a smaller size with the same overhang, at most `size`.

    The unit is the least common multiple of `block` and of the `shared` elements that have one scale. The result is
    `blocks` blocks, rounded up to whole units, plus the remainder of `size` by the unit, or one unit if there is none.
    """
    unit = math.lcm(block, shared)
    rest = size % unit
    return min(size, -(-blocks * block // unit) * unit + (rest or unit))
