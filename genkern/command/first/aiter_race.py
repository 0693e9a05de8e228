"""AITER's own kernels beside genkern's winners: its assembly and CK kernels, where aiter is installed and offers them.

    python -m genkern.command.first.aiter_race FOLDER [options of tuning]

takes the sizes of FOLDER/tuned.yaml, checks each of AITER's calls as a winner is checked, times it on cold weights, and
writes FOLDER/peers.csv after each size. They are measured for people to see: what genkern calls does not hang on them.
"""

from __future__ import annotations

import csv
import importlib
import io
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.command.options import parse
from genkern.command.setting import make_setting
from genkern.errors import GenkernError, one_line
from genkern.files import write_whole
from genkern.formats.kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.profiling.checking.verdict import Checking, Subject
from genkern.profiling.cuda.timers import Timer, make_timer
from genkern.profiling.loaded_gemm import LoadedGemm
from genkern.profiling.measured_process import environment_of
from genkern.timing.time_sources import TIMERS, visible_variable

PEER = "aiter"
_SAMPLES = 7
_CALLS = 8
COLUMNS = ("size", "op", "call", "us", "genkern_us", "message")
# A function of the operands, by name, for one problem.
Calls = Mapping[str, Callable[[Mapping[str, Any]], None]]


@dataclass(frozen=True)
class Timed:
    """What one call took, None where it is wrong or refused, and why."""

    name: str
    us: float | None
    message: str = ""


def calls_of(peer: Any, problem: GemmProblem) -> Calls:
    """The peer's calls for a problem: what the format's folder knows of them, nothing where it knows none."""
    try:
        module = importlib.import_module(f"genkern.ops.{problem.op}.{PEER}")
    except ModuleNotFoundError:
        return {}
    found: Calls = module.aiter_calls(peer, problem)
    return found


def timed(calls: Calls, gemm: Any, timer: Timer, check: Callable[[Subject], str]) -> Iterator[Timed]:
    """Each call's median sample, if it is right. What one raises is told, and the next is tried."""
    for name, call in calls.items():
        try:
            call(gemm.operands_of(0))
            if message := check(Subject(call, refuses=lambda operands: "not asked for slices")):
                yield Timed(name, None, message)
                continue
            sample = timer.prepare(lambda copy, call=call: call(gemm.operands_of(copy)), range(_CALLS))  # type: ignore[misc]
            yield Timed(name, statistics.median(sample() for _ in range(_SAMPLES)))
        except Exception as error:  # of somebody else's code: whatever it is
            yield Timed(name, None, one_line(error))


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """As CSV."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def main(argv: Sequence[str]) -> int:
    folder, *options = argv
    setting = make_setting(parse(["-m", "1", "-n", "1", "-k", "1", *options]))
    source = TIMERS[setting.target.gpu.vendor][1]
    index = setting.device_indices[0]
    # Before PyTorch looks which GPUs there are.
    os.environ.update(environment_of(visible_variable(source), index, "."))
    try:
        peer = importlib.import_module(PEER)
    except Exception as error:  # its import compiles, and may fail in any way
        print(f"left out: {PEER}'s kernels: {one_line(error)}")
        return 0
    rows: list[dict[str, object]] = []
    timer = make_timer(source)
    with setting.workshop(Console()) as workshop:
        for row in read_results(str(Path(folder) / "tuned.yaml")):
            if not (calls := calls_of(peer, row.problem)):
                print(f"left out: {row.problem.op} {row.problem.size}: {PEER} has no call for it")
                continue
            with workshop.open(row.problem, [], index) as bench:
                session = bench.job.session
                gemm = LoadedGemm(session)
                what = row.problem, get_op(row.problem.op), session.arch, gemm.module.reference, gemm.operands
                checking = Checking(*what, session.seed, session.budget.atol, session.budget.rtol)
                for found in timed(calls, gemm, timer, partial(_said, checking)):
                    values = row.problem.size, row.problem.op, found.name, found.us, row.duration_us, found.message
                    rows.append(dict(zip(COLUMNS, values, strict=True)))
                    took = f"{found.us:.2f} us" if found.us else found.message
                    print(f"{row.problem.size} {found.name}: {took}", flush=True)
            write_whole(str(Path(folder) / "peers.csv"), table(rows))
    return 0


def _said(checking: Checking, subject: Subject) -> str:
    verdict = checking.check(subject)
    return "" if verdict.passed else verdict.message or "wrong"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GenkernError as error:
        print(f"genkern: {error}", file=sys.stderr)
        sys.exit(2)
