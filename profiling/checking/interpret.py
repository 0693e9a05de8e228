"""Check a config under Triton's interpreter.

Run as `python -m genkern.profiling.checking.interpret MODULE CONFIG PROBLEM ATOL RTOL`.
"""

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
from genkern.profiling.checking.reads import Reads
from genkern.profiling.checking.verdict import Checking, Subject, Verdict, WorkBuffer
from genkern.timing.session import TOLERANCE


def module_subject(module: ModuleType, config_name: str, units: int) -> Subject:
    """Return a subject that calls the module's `matmul` with a config.

    `matmul` compiles the config in this process, or interprets it; interpreted reads are checked too. `units`: number
    of SMs or CUs.
    """
    import torch

    config = module.CONFIGS[config_name]
    # On the meta device, since only sizes and types are needed.
    made = module.with_workspace(config, {"c": torch.empty(0, device="meta")}, units)
    buffers = tuple(
        WorkBuffer(name, tensor.numel(), tensor.dtype, zero=name == "counters")
        for name, tensor in made.items()
        if name != "c"
    )

    def refuses(operands: dict[str, Any]) -> str:
        try:
            module.check_operands(config, operands)
        except ValueError as error:
            return str(error)
        return ""

    reads = Reads()

    def launch(operands: dict[str, Any]) -> None:
        with reads.watched(operands):
            module.matmul(config, operands, units)

    return Subject(launch, buffers, refuses, lambda: reads.fault)


# Number of programs for kernels that launch one per compute unit. Three is less than the 2 x 2 tiles of a reduced size,
# so one program computes two tiles.
_UNITS = 3


def main(argv: list[str]) -> None:
    """Check a config of a module and print one JSON line: the verdict with the actual type of A, "bug" or "no_memory".

    `argv`: module path, config name, problem as JSON, atol, rtol. "bug" reports an error in the module itself, with its
        traceback in "details"; "no_memory" reports that memory ran out.
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
    """Return the verdict on a config of the module of `problem`.

    `units`: number of programs for kernels that launch one per compute unit. The interpreter sums in float32, whatever
        precision `arch` has.
    """
    like = module.make_operands("cpu")
    if problem.dtype_c == "bf16":
        # The interpreter of Triton 3.7 truncates float32 to bfloat16 although GPUs round, so float16 replaces bfloat16
        # here.
        like["c"] = like["c"].half()
    checking = Checking(problem, get_op(problem.op), arch, module.reference, like, atol=atol, rtol=rtol)
    return checking.check(module_subject(module, config_name, units))


if __name__ == "__main__":
    main(sys.argv[1:])
