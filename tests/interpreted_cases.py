"""Runs configs of generated modules under Triton's interpreter.

Standard input is JSON, [[module path, config name], ...]; standard output is a line of JSON for each.
One process for all, since importing Triton and PyTorch takes longer than a case.
"""

from __future__ import annotations

import json
import sys
import traceback

from genkern.compiler import load_module
from genkern.profiling.accuracy import error_ratio, worst_row_error


def main() -> None:
    """Print [error ratio, worst row error] of each case, or the traceback."""
    for path, name in json.load(sys.stdin):
        try:
            module = load_module(path)
            operands = module.make_operands("cpu")
            expected = module.reference(operands)
            operands["c"].fill_(float("nan"))
            # By the function that the module makes for the config, two programs for the persistent kernels.
            actual = getattr(module, f"matmul_{name}")(operands, units=2)
            answer: object = [error_ratio(actual, expected), worst_row_error(actual, expected)]
        except Exception:
            answer = traceback.format_exc()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
