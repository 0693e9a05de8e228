"""Runs configs of generated modules under Triton's interpreter.

Standard input is JSON, [[module path, config name, units], ...]; standard output is a line of JSON for each.
One process for all, since importing Triton and PyTorch takes longer than a case.
"""

from __future__ import annotations

import json
import sys
import traceback
from types import ModuleType
from typing import Any

from genkern.compiler import load_module
from genkern.profiling.accuracy import error_ratio, worst_row_error

# What a workspace holds that nobody has written.
_GARBAGE = 12345


def _again(module: ModuleType, name: str, operands: dict[str, Any], units: int) -> str:
    """What is wrong after a call, or with a second one in the same workspace; "" when nothing is."""
    if "workspace" not in operands:
        return ""
    if "counters" in operands and operands["counters"].any():
        return "counters are not back at zero"
    first = operands["c"].clone()
    operands["c"].fill_(float("nan"))
    getattr(module, f"matmul_{name}")(operands, units=units)
    return "" if first.equal(operands["c"]) else "a second call gives another result"


def main() -> None:
    """Print [error ratio, worst row error, what a second call found wrong] of each case, or the traceback."""
    for path, name, units in json.load(sys.stdin):
        try:
            module = load_module(path)
            operands = module.make_operands("cpu")
            expected = module.reference(operands)
            operands["c"].fill_(float("nan"))
            # By the function that the module makes for the config; `units` programs for the persistent kernels.
            operands = module.with_workspace(module.CONFIGS[name], operands, units)
            if "workspace" in operands:
                operands["workspace"].fill_(_GARBAGE)
            actual = getattr(module, f"matmul_{name}")(operands, units=units)
            answer: object = [
                error_ratio(actual, expected),
                worst_row_error(actual, expected),
                _again(module, name, operands, units),
            ]
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
