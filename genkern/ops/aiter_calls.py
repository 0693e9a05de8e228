"""AITER's functions for a problem, as a format's aiter.py declares them. No call has been run on an AMD GPU.

Source: ROCm/aiter e4048607 (2026-08). Weights are [N, K]. AITER has no activations and no other layouts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_folder, op_names


@dataclass(frozen=True)
class AiterCall:
    """One function of AITER.

    launch: function that takes a problem's operands by name and writes C.
    module: the module of AITER that the function is in; AITER compiles it at the first call, which takes minutes. ""
        for functions that need no compilation.
    """

    launch: Callable[[Mapping[str, Any]], None]
    module: str = ""


def problems_with_calls() -> dict[str, Mapping[str, str]]:
    """Return the formats that AITER has functions for, each with the problem fields that AITER requires."""
    having = [name for name in op_names() if (op_folder(name) / "aiter.py").exists()]
    return {name: getattr(importlib.import_module(f"genkern.ops.{name}.aiter"), "ASKED", {}) for name in having}


def aiter_calls(aiter: Any, problem: GemmProblem) -> Mapping[str, AiterCall]:
    """Return the functions that this AITER has for the problem, by their names in results (genkern.timing.libraries).

    Empty if the format has no aiter.py, or if AITER lacks the problem's layout or activation.
    """
    if problem.activation != "none" or not problem.row_major_a or problem.row_major_b:
        return {}
    try:
        module = importlib.import_module(f"genkern.ops.{problem.op}.aiter")
    except ModuleNotFoundError:
        return {}
    found: Mapping[str, AiterCall] = module.calls(aiter, problem)
    return found


def is_built(aiter: Any, call: AiterCall) -> bool:
    """Return True if a call compiles nothing: its module is built (aiter/jit/core.py, get_user_jit_dir) or unneeded."""
    if not call.module:
        return True
    try:
        return (Path(aiter.jit.core.get_user_jit_dir()) / f"{call.module}.so").is_file()
    except AttributeError:
        return False


def weight_of(operands: Mapping[str, Any], problem: GemmProblem) -> Any:
    """Return B as AITER takes it, [N, K], shuffled or not, without a copy."""
    return operands["b"].mT.reshape(problem.N, problem.K)


def calls_of(
    aiter: Any,
    problem: GemmProblem,
    functions: Mapping[str, tuple[str, str]],
    others: Callable[[Mapping[str, Any]], Sequence[Any]],
) -> dict[str, AiterCall]:
    """Return calls of the `functions` that this AITER has.

    `functions` maps names in results to (function, module). Each function is called with A, B and what `others` returns
    for the operands.
    """

    def launch(function: Any, operands: Mapping[str, Any]) -> None:
        function(operands["a"], weight_of(operands, problem), *others(operands))

    return {
        name: AiterCall(partial(launch, getattr(aiter, function)), module)
        for name, (function, module) in functions.items()
        if hasattr(aiter, function)
    }
