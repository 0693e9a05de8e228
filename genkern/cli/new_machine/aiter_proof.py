"""Calls AITER's own assembly and CK kernels once and checks their outputs, if aiter is installed and offers them.

    python -m genkern.cli.new_machine.aiter_proof [options of tuning]

AITER builds a module when it is first called, which takes minutes; tuning only uses modules that are built.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from genkern.cli.new_machine.proving import SIZE
from genkern.cli.options import parse
from genkern.cli.setting import Setting, make_setting
from genkern.errors import GenkernError, one_line
from genkern.files.gemm_entry import GemmDefaults, resolve
from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import problems_with_calls
from genkern.ops.op import get_op
from genkern.profiling.aiter_finder import AiterFinder, installed
from genkern.profiling.checking.verdict import Checking
from genkern.profiling.loaded_gemm import LoadedGemm
from genkern.profiling.measured_process import environment_of
from genkern.runtime.backends.lt_api import LtError
from genkern.timing.profiler import TIMERS, visible_variable


@dataclass(frozen=True)
class Proved:
    """A call by name, and the fault of its output or the exception that it raised; "" if its output is right."""

    name: str
    message: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.message or 'right'}"


def proved(calls: AiterFinder, checking: Checking) -> Iterator[Proved]:
    """Check each of the calls; an exception is recorded, and the next call is tried."""
    for name in calls.names():
        try:
            verdict = checking.check(calls.subject(name))
            yield Proved(name, "" if verdict.passed else verdict.message or "wrong")
        except Exception as error:  # foreign code may raise anything
            yield Proved(name, one_line(error))


def problems(arch: str) -> Iterator[GemmProblem]:
    """Yield a problem of each format that AITER has functions for; print the formats that the GPU does not support."""
    for op, own in problems_with_calls().items():
        try:
            yield resolve({**SIZE, "op": op, **own}, GemmDefaults(), arch).problem
        except GenkernError as error:
            print(f"left out: {op}: {error}")


def run(setting: Setting) -> None:
    """Check each call of each format, and print a line for each."""
    index = setting.device_indices[0]
    with setting.build_environment(Console()) as build_environment:
        for problem in problems(setting.target.arch):
            with build_environment.open(problem, [], index) as builder:
                session = builder.build.session
                gemm = LoadedGemm(session)
                what = problem, get_op(problem.op), session.arch, gemm.module.reference, gemm.operands
                checking = Checking(*what, session.seed, session.budget.atol, session.budget.rtol)
                calls = AiterFinder(gemm, unbuilt=True)
                if not calls.names():
                    print(f"left out: {problem.op}: this aiter has no call for it")
                for found in proved(calls, checking):
                    print(f"{problem.op} {found.line}", flush=True)


def main(argv: Sequence[str]) -> int:
    setting = make_setting(parse(["-m", "1", "-n", "1", "-k", "1", *argv]))
    source = TIMERS[setting.target.gpu.vendor][1]
    # Set before PyTorch looks for GPUs.
    os.environ.update(environment_of(visible_variable(source), setting.device_indices[0], "."))
    try:
        installed()
    except LtError as error:
        print(f"left out: {error}")
        return 0
    run(setting)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GenkernError as error:
        print(f"genkern: {error}", file=sys.stderr)
        sys.exit(2)
