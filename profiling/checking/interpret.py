"""A config under Triton's interpreter: `-m genkern.profiling.checking.interpret MODULE CONFIG PROBLEM ATOL RTOL`."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from genkern.errors import one_line
from genkern.gemm.problem import GemmProblem
from genkern.kernels.refusal import is_bug_when_interpreted, is_out_of_memory
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.subjects import module_subject
from genkern.profiling.checking.verdict import Checking, Verdict
from genkern.timing.session import TOLERANCE

# Three programs where their number is the GPU's: the two by two tiles of a reduced size leave one to be shared.
_UNITS = 3


def main(argv: list[str]) -> None:
    """Check a config of the module of PROBLEM, JSON; print the verdict and the type that A really had as a JSON line.

    Of a module that is wrong itself, the bug; and that there is no memory.
    """
    module_path, config_name, values, atol, rtol = argv
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1 before Triton is imported")
    answer: dict[str, Any]
    try:
        module = load_module(module_path)
        problem = GemmProblem(**json.loads(values))
        answer = dataclasses.asdict(verdict_on(module, config_name, problem, _UNITS, float(atol), float(rtol)))
        answer["dtype_a"] = str(module.make_operands("cpu")["a"].dtype).removeprefix("torch.")
    except Exception as error:
        if is_out_of_memory(error):
            answer = {"no_memory": one_line(error)}
        elif is_bug_when_interpreted(error, module_path):
            answer = {"bug": one_line(error), "details": traceback.format_exc()}
        else:
            raise
    print(json.dumps(answer))


def verdict_on(
    module: ModuleType,
    config_name: str,
    problem: GemmProblem,
    units: int,
    atol: float = TOLERANCE,
    rtol: float = TOLERANCE,
    arch: str = "interpreter",
) -> Verdict:
    """The verdict on a config of the module of `problem`, with so many programs where their number is the GPU's.

    The interpreter's sums are float32's, whatever `arch` keeps of them.
    """
    like = module.make_operands("cpu")
    if problem.dtype_c == "bf16":
        # The interpreter of Triton 3.7 cuts float32 to bfloat16 where a GPU rounds: float16 stands in for it.
        like["c"] = like["c"].half()
    checking = Checking(problem, get_op(problem.op), arch, module.reference, like, atol=atol, rtol=rtol)
    return checking.check(module_subject(module, config_name, units))


if __name__ == "__main__":
    main(sys.argv[1:])
