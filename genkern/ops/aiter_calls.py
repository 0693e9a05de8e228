"""AITER's calls for a problem: what a format's aiter.py knows of them. None has run on AMD hardware here.

Source: ROCm/aiter e4048607 (2026-08). Weights are [N, K]; AITER knows neither activations nor other layouts.
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
    """`launch` writes C of a problem's operands, which it takes by name. `module` is the one of AITER's that it is in,
    which AITER builds, in minutes, when it is first called; "" where it is in none.
    """

    launch: Callable[[Mapping[str, Any]], None]
    module: str = ""


def asked() -> dict[str, Mapping[str, str]]:
    """The formats of genkern's that have calls, each with the problem fields that AITER asks for."""
    having = [name for name in op_names() if (op_folder(name) / "aiter.py").exists()]
    return {name: getattr(importlib.import_module(f"genkern.ops.{name}.aiter"), "ASKED", {}) for name in having}


def aiter_calls(aiter: Any, problem: GemmProblem) -> Mapping[str, AiterCall]:
    """By name in results (genkern.timing.libraries) those that this aiter has for the problem; none where the format's
    folder knows of none.
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
    """Whether nothing is compiled when it is called (aiter/jit/core.py: get_user_jit_dir)."""
    if not call.module:
        return True
    try:
        return (Path(aiter.jit.core.get_user_jit_dir()) / f"{call.module}.so").is_file()
    except AttributeError:
        return False


def weight_of(operands: Mapping[str, Any], problem: GemmProblem) -> Any:
    """B as AITER has it, [N, K], shuffled or not: the same memory."""
    return operands["b"].mT.reshape(problem.N, problem.K)


def calls_of(
    aiter: Any,
    problem: GemmProblem,
    functions: Mapping[str, tuple[str, str]],
    others: Callable[[Mapping[str, Any]], Sequence[Any]],
) -> dict[str, AiterCall]:
    """Calls of those `functions` that this aiter has, each with its module: of A, B, and what `others` gives."""

    def launch(function: Any, operands: Mapping[str, Any]) -> None:
        function(operands["a"], weight_of(operands, problem), *others(operands))

    return {
        name: AiterCall(partial(launch, getattr(aiter, function)), module)
        for name, (function, module) in functions.items()
        if hasattr(aiter, function)
    }
