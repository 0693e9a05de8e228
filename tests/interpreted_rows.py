"""Compares rows of kernels of generated modules to the bit, under Triton's interpreter, for test_order_faults.py.

Arguments: a folder with the modules, and a case as JSON: the problem, a config's name, its module and the others. The
answer: of each other module what checking its product, and comparing its rows with the config's, finds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fast_interpreter import make_interpreter_fast

from genkern.gemm.problem import GemmProblem
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.interpret import module_subject
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.same_bits.row_bits import RowChecking


def main() -> None:
    folder, case = Path(sys.argv[1]), json.loads(sys.argv[2])
    make_interpreter_fast()
    problem, name = GemmProblem(**case["problem"]), case["config"]
    good = load_module(str(folder / case["module"]))
    like, op = good.make_operands("cpu", 0, "randn"), get_op(problem.op)
    rows, checking = RowChecking(problem, op, like), Checking(problem, op, "sm_90", good.reference, like)
    found = {}
    for other in [case["module"], *case["others"]]:
        subject = module_subject(load_module(str(folder / other)), name, 8)
        message = rows.check(subject, module_subject(good, name, 8)).message
        found[other] = [checking.check(subject).message, message]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
