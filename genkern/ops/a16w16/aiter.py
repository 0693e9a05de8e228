"""AITER's functions for this format: its assembly kernels, and the kernel that AITER's table selects for the size.

Sources: aiter/ops/gemm_op_a16w16.py (gemm_a16w16_asm), aiter/tuned_gemm.py, and csrc/gemm_a16w16/gemm_a16w16_tune.py,
whose `_get_asm_tasks` defines which kernels take a size, with which numbers of splits, and their solidx.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from genkern.file_io import open_regular
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import AiterCall, weight_of
from genkern.timing.libraries import AsmKernel

_ASM = "module_gemm_a16w16_asm"
_STEP, _MOST_SPLITS = 64, 16
# Largest number of tiles of C for which kernels that split K have counters (ASM_SPLITK_MAX_GRID).
_MOST_TILES = 1024
# Entries of AITER's table that are not candidates by themselves, each with its module.
_OF_TABLE = {"skinny": "module_custom", "triton": "", "flydsl": ""}


def calls(aiter: Any, problem: GemmProblem) -> dict[str, AiterCall]:
    """Return AITER's calls by their names in results."""
    found = {
        kernel.name: AiterCall(partial(_assembly, aiter.gemm_a16w16_asm, problem, kernel), _ASM)
        for kernel in assembly(aiter, problem)
    }
    libtype = _table_says(aiter, problem)
    if libtype in _OF_TABLE:
        launch = partial(_dispatched, aiter.tuned_gemm.tgemm, problem)
        found[f"aiter tuned {libtype}"] = AiterCall(launch, _OF_TABLE[libtype])
    return found


def assembly(aiter: Any, problem: GemmProblem) -> Iterator[AsmKernel]:
    """Yield the assembly kernels that take the problem; none if AITER's list of them is not in its usual place."""
    if not hasattr(aiter, "gemm_a16w16_asm") or problem.dtype_a != "bf16" or problem.K % _STEP:
        return
    try:
        path = Path(aiter.jit.core.get_asm_dir()) / "bf16gemm" / "bf16gemm_fp32bf16.csv"
        units = aiter.jit.utils.chip_info.get_cu_num()
    except AttributeError:
        return
    if not path.is_file():
        return
    with open(path, newline="", encoding="utf-8", opener=open_regular) as file:
        rows = list(csv.DictReader(file))
    numbers = ("tileM", "tileN", "pf", "splitK", "subK", "bias", "bPreshuffle")
    by_key: dict[tuple[int, ...], str] = {}
    for row in rows:
        by_key.setdefault(tuple(int(row[name]) for name in numbers), row["knl_name"])
    solution = 0
    for (tile_m, tile_n, _, splits, step, bias, shuffled), name in sorted(by_key.items()):
        if shuffled or (problem.bias and not bias):
            continue
        solution += 1
        tiles = -(-problem.M // tile_m) * -(-problem.N // tile_n)
        if problem.N % tile_n or (splits and tiles > _MOST_TILES):
            continue
        most = (units // tiles if tiles < units else 4) if splits else 1
        for count in range(2 if splits else 1, min(most, _MOST_SPLITS, problem.K // step) + 1):
            yield AsmKernel(solution, count, name)


def _table_says(aiter: Any, problem: GemmProblem) -> str:
    """Return the libtype that AITER selects for this size, from its table or by default."""
    look_up = getattr(getattr(aiter, "tuned_gemm", None), "get_GEMM_A16W16_config", None)
    if look_up is None or problem.dtype_a not in ("fp16", "bf16"):
        return ""
    types = (f"torch.{DTYPES[dtype].torch}" for dtype in (problem.dtype_a, problem.dtype_c))
    return str(look_up(problem.M, problem.N, problem.K, problem.bias, *types)["libtype"])


def _dispatched(dispatch: Any, problem: GemmProblem, operands: Mapping[str, Any]) -> None:
    c = operands["c"]
    c.copy_(dispatch.mm(operands["a"], weight_of(operands, problem), bias=operands.get("bias"), otype=c.dtype))


def _assembly(asm: Any, problem: GemmProblem, kernel: AsmKernel, operands: Mapping[str, Any]) -> None:
    weight = weight_of(operands, problem)
    asm(operands["a"], weight, operands["c"], operands.get("bias"), kernel.splits, kernel.kernel, False)
