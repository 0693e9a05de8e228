"""Judges configs of generated modules by profiling/checking: a JSON line asks, and a JSON line is the verdict.

A process judges case after case. After one that broke the device it ends: the next needs another process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from genkern.errors import one_line
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.refusal import is_out_of_memory
from genkern.kernels.source import load_module
from genkern.ops.op import get_op
from genkern.profiling.checking.interpret import module_subject, verdict_on
from genkern.profiling.checking.verdict import Checking, Verdict

# Programs where their number is the GPU's: a wave of four leaves two of the six tiles of a mutant to be shared.
_UNITS = 4
# Where there is no memory for a case it is tried again after so long.
_WAITS_S = (1, 3, 9, 27)
# A fault that does not compile, or breaks what is around the kernel, is no fault that a check could find.
_NO_FAULT = (NameError, SyntaxError, AttributeError, TypeError, KeyError, ImportError)


def outcome(case: dict[str, Any]) -> dict[str, str]:
    """The verdict on one case: its module's text, or "" for one without a fault, goes to its path."""
    problem, config = GemmProblem(**case["problem"]), Config.parse(case["config"])
    text = case["text"] or generate(problem, [config], case["arch"]).text
    Path(case["path"]).write_text(text, encoding="utf-8")
    try:
        verdict = _with_room(case["path"], problem, config.name, case["arch"])
    except Exception as error:
        said = one_line(error)[:300]
        if not _device_is_well():
            return {"outcome": "fault", "message": said}
        invalid = isinstance(error, _NO_FAULT) or "Compil" in type(error).__name__ or "PTXAS" in said
        return {"outcome": "invalid" if invalid else "refused", "message": said}
    return {"outcome": "passed" if verdict.passed else "wrong", "message": verdict.message}


def _with_room(path: str, problem: GemmProblem, config: str, arch: str) -> Verdict:
    """The verdict, once the other processes on this GPU have left memory for it."""
    for wait_s in _WAITS_S:
        try:
            return _verdict(path, problem, config, arch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        finally:
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        time.sleep(wait_s)
    return _verdict(path, problem, config, arch)


def _verdict(path: str, problem: GemmProblem, config: str, arch: str) -> Verdict:
    module = load_module(path)
    if not torch.cuda.is_available():
        return verdict_on(module, config, problem, _UNITS)
    units = torch.cuda.get_device_properties(0).multi_processor_count
    checking = Checking(problem, get_op(problem.op), arch, module.reference, module.make_operands("cuda"))
    verdict = checking.check(module_subject(module, config, units))
    # A fault of this case is not to be the next one's.
    torch.cuda.synchronize()
    return verdict


def _device_is_well() -> bool:
    """Whether it still computes: after a fault every call fails."""
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
        return bool(torch.ones(1, device="cuda").item())
    except RuntimeError:
        return False


def main() -> None:
    # Libraries print to standard output; the answers keep a descriptor of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    say({"ready": True})
    for line in sys.stdin:
        answer = outcome(json.loads(line))
        say(answer)
        if answer["outcome"] == "fault":
            # With a broken context, Python's own exit may wait for ever.
            os._exit(1)


if __name__ == "__main__":
    main()
