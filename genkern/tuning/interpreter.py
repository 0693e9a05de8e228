"""Triton's interpreter as a checker: whether it works here is found out before a run relies on it."""

from __future__ import annotations

from dataclasses import replace

from genkern.errors import ProfilerError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate
from genkern.gemm.triton_release import installed
from genkern.installation import pip_install
from genkern.timing.session import TOLERANCE, Budget, Session
from genkern.tuning.check import InterpreterChecker

_TRIAL = GemmProblem(16, 16, 16)
_TRIAL_CONFIG = Config("tiled", 16, 16, 16)


def interpreter_checker(err_ratio: float, arch: str, budget: Budget, module_dir: str) -> InterpreterChecker:
    """A checker that has passed a trial on one small kernel, in about two seconds; modules go to `module_dir`.

    Raises ProfilerError when PyTorch or NumPy is missing, or when this Triton's interpreter does not work
    with them: every config would look wrong.
    """
    missing = [name for name in ("torch", "numpy") if not installed(name)]
    if missing:
        raise ProfilerError(
            f"without a GPU configs are checked under Triton's interpreter, which needs {' and '.join(missing)}: "
            f"{pip_install('torch')}, or check on a machine with a GPU"
        )
    checker = InterpreterChecker(err_ratio)
    # Whether it works, and not how close it comes.
    budget = replace(budget, atol=TOLERANCE, rtol=TOLERANCE)
    session = Session("", _TRIAL, arch, 0, module_dir, budget)
    trial = checker.check(session, Candidate(_TRIAL_CONFIG, ()))
    if not trial.passed:
        said = trial.message or "it multiplies wrongly"
        raise ProfilerError(
            f"Triton's interpreter, which checks configs without a GPU, does not work here: {said[:200]}; "
            "try another NumPy or Triton, or check on a machine with a GPU"
        )
    return checker
