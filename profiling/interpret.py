"""One config under Triton's interpreter: `python -m genkern.profiling.interpret MODULE CONFIG`."""

from __future__ import annotations

import json
import os
import sys
import traceback

from genkern.errors import one_line
from genkern.kernels.refusal import is_bug_when_interpreted
from genkern.kernels.source import load_module
from genkern.profiling.checking.accuracy import error_ratio, worst_row_error


def main(argv: list[str]) -> None:
    """Print the error ratio, the worst row error and the type that A really had as one JSON line.

    Of a module that is wrong itself, the bug.
    """
    module_path, config_name = argv
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1 before Triton is imported")
    try:
        answer = interpreted(module_path, config_name)
    except Exception as error:
        if not is_bug_when_interpreted(error, module_path):
            raise
        answer = {"bug": one_line(error), "details": traceback.format_exc()}
    print(json.dumps(answer))


def interpreted(module_path: str, config_name: str) -> dict[str, float | str]:
    """The two errors of the config's output, and the type that A had."""
    module = load_module(module_path)
    operands = module.make_operands("cpu")
    expected = module.reference(operands)
    operands["c"].fill_(float("nan"))
    # Three programs where their number is the GPU's: the two by two tiles of a reduced size leave one to be shared.
    actual = module.matmul(module.CONFIGS[config_name], operands, units=3)
    return {
        "error_ratio": error_ratio(actual, expected),
        "worst_row_error": worst_row_error(actual, expected),
        "dtype_a": str(operands["a"].dtype).removeprefix("torch."),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
