"""Judges configs of generated modules by profiling/checking, one JSON line a verdict: `judged_module.py CASES.json`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from genkern.gemm.problem import GemmProblem
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.subjects import module_subject
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.interpret import verdict_on

# Three programs where their number is the GPU's: they leave a tile to be shared.
_UNITS = 3


def outcome(case: dict[str, object]) -> dict[str, str]:
    """The verdict on one case."""
    module = load_module(str(case["path"]))
    problem = GemmProblem(**case["problem"])  # type: ignore[arg-type]
    config = str(case["config"])
    try:
        if torch.cuda.is_available():
            units = torch.cuda.get_device_properties(0).multi_processor_count
            like = module.make_operands("cuda")
            checking = Checking(problem, get_op(problem.op), str(case["arch"]), module.reference, like)
            verdict = checking.verdict(module_subject(module, config, units))
            torch.cuda.synchronize()
        else:
            verdict = verdict_on(module, config, problem, _UNITS)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        # A fault that does not compile is no fault that a check could find.
        refused = "Compil" in type(error).__name__ or "PTXAS" in said or isinstance(error, (NameError, SyntaxError))
        return {"outcome": "invalid" if refused else "crashed", "message": said}
    return {"outcome": "passed" if verdict.passed else "wrong", "message": verdict.message}


def main() -> None:
    for case in json.loads(Path(sys.argv[1]).read_text()):
        answer = outcome(case)
        print(json.dumps(answer), flush=True)
        if answer["outcome"] == "crashed":
            # The device may be broken for whatever comes next.
            os._exit(1)


if __name__ == "__main__":
    main()
