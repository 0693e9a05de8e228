"""Checks under Triton's interpreter, which is tried out before a run relies on it."""

from __future__ import annotations

from genkern.errors import ProfilerError
from genkern.gemm.triton_release import installed
from genkern.installation import pip_install
from genkern.tuning.checkers import InterpreterChecker


def interpreter_checker(err_ratio: float, module_dir: str) -> InterpreterChecker:
    """Return a checker, after a trial of the interpreter with one small kernel, which takes about two seconds.

    The trial's files go to `module_dir`. No template generates the trial's kernel, so a broken template is still
    reported as a wrong config. Raises ProfilerError if PyTorch or NumPy is missing, or if this Triton's interpreter
    does not work with them; every config would then look wrong.
    """
    missing = [name for name in ("torch", "numpy") if not installed(name)]
    if missing:
        raise ProfilerError(
            f"without a GPU configs are checked under Triton's interpreter, which needs {' and '.join(missing)}: "
            f"{pip_install('torch')}, or check on a machine with a GPU"
        )
    checker = InterpreterChecker(err_ratio)
    if said := checker.trial(module_dir):
        raise ProfilerError(
            f"Triton's interpreter, which checks configs without a GPU, does not work here: {said[:200]}; "
            "try another NumPy or Triton, or check on a machine with a GPU"
        )
    return checker
