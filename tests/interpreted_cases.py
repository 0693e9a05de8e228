"""Runs configs of generated modules, and whole programs, under Triton's interpreter, for tests/interpreted.py.

A line of standard input is a case, JSON; a line of standard output is its answer, or its traceback as text.
One process for many, since importing Triton and PyTorch takes longer than a case. A line with "argv" is a program,
which is run in a fork of this process: its answer is a wait status.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback
from dataclasses import asdict
from types import ModuleType
from typing import Any

import torch
from fast_interpreter import few_bits_of_float8, make_interpreter_fast
from ordered_sums import operands_of_rows

from genkern.gemm.problem import GemmProblem
from genkern.kernels.source import load_module
from genkern.profiling.checking import interpret, interpreter_trial
from genkern.profiling.checking.verdict import error_ratio, worst_row_error

# What a workspace holds that nobody has written.
_GARBAGE = 12345


def _again(module: ModuleType, name: str, operands: dict[str, Any], units: int) -> str:
    """What is wrong after a call that leaves something behind, or with a second one; "" when nothing is."""
    if "counters" not in operands:
        return ""
    if operands["counters"].any():
        return "counters are not back at zero"
    first = operands["c"].clone()
    operands["c"].fill_(float("nan"))
    getattr(module, f"matmul_{name}")(operands, units=units)
    return "" if first.equal(operands["c"]) else "a second call gives another result"


def padded(x: Any, row_major: bool, extra: int) -> tuple[Any, Any]:
    """`x` as a slice of a matrix whose leading dimension is `extra` elements longer, and that matrix.

    What lies around the slice has all bytes 0x7f: NaN, or a number that would be seen in any sum.
    """
    if not row_major:
        view, whole = padded(x.T, True, extra)
        return view.T, whole
    rows, columns = x.shape
    whole = torch.full((rows, (columns + extra) * x.element_size()), 0x7F, dtype=torch.uint8).view(x.dtype)
    view = whole[:, extra // 2 : extra // 2 + columns]
    view.copy_(x)
    return view, whole


def _rows(module: ModuleType, case: dict[str, Any]) -> list[list[float]]:
    """C of these rows of a pool, by sm_90's sums of fp8, with scales of 1."""
    operands = module.make_operands("cpu", 0)
    a, b = operands_of_rows(case["rows"], *operands["b"].shape)
    for name, numbers in ("a", a), ("b", b):
        operands[name].copy_(torch.from_numpy(numbers))
    for name in ("scale_a", "scale_b"):
        operands[name].fill_(1.0)
    operands["c"].fill_(float("nan"))
    operands = module.with_workspace(module.CONFIGS[case["config"]], operands, case["units"])
    with few_bits_of_float8():
        found = getattr(module, f"matmul_{case['config']}")(operands, units=case["units"])
    rows: list[list[float]] = found.tolist()
    return rows


def answer(case: dict[str, Any]) -> dict[str, object]:
    """What the config computes, against the module's reference, and against float64 where that is asked for."""
    module = load_module(case["path"])
    if "problem" in case:
        problem, units = GemmProblem(**case["problem"]), case["units"]
        if not case["few_bits"]:
            return asdict(interpret.verdict_on(module, case["config"], problem, units))
        with few_bits_of_float8():
            return asdict(interpret.verdict_on(module, case["config"], problem, units, arch="sm_90"))
    if "rows" in case:
        return {"c": _rows(module, case)}
    operands = module.make_operands("cpu", case["seed"])
    if case["positive"]:
        # Sums in which nothing cancels: the relative error is that of the summation.
        generator = torch.Generator().manual_seed(case["seed"])
        for name in ("a", "b"):
            operands[name].copy_(torch.rand(operands[name].shape, generator=generator))
    expected = module.reference(operands)
    around = None
    if extra := case["extra"]:
        for name in ("a", "b", "c"):
            operands[name], around = padded(operands[name], case["row_major"][name], extra[name])
    operands["c"].fill_(float("nan"))
    before = around.clone() if around is not None else None
    # By the function that the module makes for the config; `units` programs for the persistent kernels.
    units = case["units"]
    operands = module.with_workspace(module.CONFIGS[case["config"]], operands, units)
    if "workspace" in operands:
        operands["workspace"].fill_(_GARBAGE)
    actual = getattr(module, f"matmul_{case['config']}")(operands, units=units)
    found: dict[str, object] = {
        "error_ratio": error_ratio(actual, expected),
        "worst_row_error": worst_row_error(actual, expected),
        "again": _again(module, case["config"], operands, units),
    }
    if case["positive"]:
        exact = operands["a"].double() @ operands["b"].double()
        found["worst_relative_error"] = ((actual.double() - exact).abs() / exact).max().item()
    if around is not None and before is not None:
        start = extra["c"] // 2
        for whole in (around, before):
            whole[:, start : start + actual.shape[1]] = 0
        found["around_is_untouched"] = torch.equal(around.view(torch.uint8), before.view(torch.uint8))
    return found


def forked(argv: list[str], environment: dict[str, str], out: str, errors: str) -> int:
    """The wait status of a program, what it printed in files: a script, or interpret.py with these arguments."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    status = 1
    try:
        for number, path in enumerate((os.devnull, out, errors)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
            os.dup2(os.open(path, flags, 0o600), number)
        os.environ.clear()
        os.environ.update(environment)
        if argv[0] == interpret.__name__:
            interpret.main(argv[1:])
        elif argv[0] == interpreter_trial.__name__:
            interpreter_trial.main()
        else:
            runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except BaseException:  # as the interpreter itself does at its end
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    make_interpreter_fast()
    for line in sys.stdin:
        said: object
        try:
            asked = json.loads(line)
            said = forked(**asked) if "argv" in asked else answer(asked)
        except Exception:  # whatever a kernel raises is the answer: the test that asked shows it and fails
            said = traceback.format_exc()
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
