"""AITER's kernels for this format, by its own Python interface; none of it has run on AMD hardware here.

Sources (ROCm/aiter, 2026-08): aiter/ops/gemm_op_a16w16.py (gemm_a16w16_asm), aiter/tuned_gemm.py (tgemm.mm), and
gradlib/GemmTuner.py, which reads the names of the assembly kernels from hsa/<arch>/bf16gemm/*.csv.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from genkern.gemm.problem import GemmProblem

# The assembly kernels step along K by so much (GemmTuner.asm_gemm_all_solutions).
_ASM_STEP = 64


def aiter_calls(aiter: Any, problem: GemmProblem) -> dict[str, Callable[[Mapping[str, Any]], None]]:
    """By name, functions of the operands that write C; without those that this aiter does not have.

    AITER has weights as [N, K], and neither activations nor other layouts.
    """
    if not problem.row_major_a or problem.row_major_b or problem.activation != "none":
        return {}
    found: dict[str, Callable[[Mapping[str, Any]], None]] = {}
    if (dispatch := getattr(getattr(aiter, "tuned_gemm", None), "tgemm", None)) is not None:
        found["aiter tuned"] = partial(_dispatched, dispatch)
    asm = getattr(aiter, "gemm_a16w16_asm", None)
    if asm is not None and problem.dtype_a == "bf16" and problem.K % _ASM_STEP == 0:
        found |= {f"aiter asm {name}": partial(_assembly, asm, name) for name in asm_kernels(aiter)}
    return found


def asm_kernels(aiter: Any) -> list[str]:
    """The names of the kernels that take weights as they are; empty where the lists are not where they used to be."""
    try:
        folder = Path(aiter.jit.core.get_asm_dir()) / "bf16gemm"
    except AttributeError:
        return []
    names: dict[str, None] = {}
    for path in sorted(folder.glob("*.csv")):
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row.get("knl_name") and row.get("bPreshuffle", "0") in ("0", "", None):
                    names[row["knl_name"]] = None
    return list(names)


def _dispatched(dispatch: Any, operands: Mapping[str, Any]) -> None:
    c = operands["c"]
    c.copy_(dispatch.mm(operands["a"], operands["b"].T, bias=operands.get("bias"), otype=c.dtype))


def _assembly(asm: Any, name: str, operands: Mapping[str, Any]) -> None:
    # One split: with more, a grid may outgrow the counters that AITER gives it (ASM_SPLITK_MAX_GRID).
    asm(operands["a"], operands["b"].T, operands["c"], operands.get("bias"), 1, name, False)
