"""Workbench: genkern's own pieces in the process of a benchmark: the farm's binaries, cold weights, timer and rounds.

It stands where the measured process stands in a run of genkern, so that other timers can time the very same kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from benchmarks.common.figures import spread_order
from genkern.cli.options import parse
from genkern.cli.setting import Setting, make_setting
from genkern.compile.build_environment import BuildEnvironment
from genkern.errors import GenkernError
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate
from genkern.ops.op import get_op
from genkern.profiling.clocks import ThrottleGuard, open_clock
from genkern.profiling.finals import Finals, Rounds, run_finals
from genkern.profiling.loaded_gemm import Call, Launchable, LoadedGemm
from genkern.profiling.timers import Sampler, Timer, make_timer
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import estimate

Item = TypeVar("Item")
# As in the measured process (profiling/server.py): a sample of about so long, of so many calls at most.
SAMPLE_US = 100.0
MOST_REPEATS = 32
# Long calls vary little: for so much time, fewer calls will do than a sample has otherwise.
ENOUGH_US = 1000.0
# Characters of an error.
MOST_SAID = 6000


def sample_copies(call_us: float, copies: int, least: int) -> list[int]:
    """The copies of the weights that the calls of one sample use: each copy at least once."""
    call_us = max(call_us, 1.0)
    least = min(least, max(1, int(ENOUGH_US / call_us)))
    repeats = max(least, min(MOST_REPEATS, int(SAMPLE_US / call_us)), copies)
    return [i % copies for i in range(repeats)]


@dataclass
class Bench:
    """One problem on the device: its operands, and the candidates among the configs asked for."""

    problem: GemmProblem
    gemm: LoadedGemm
    candidates: Mapping[str, Candidate]
    timer: Timer
    guard: ThrottleGuard

    def calls(self, library: bool = True) -> dict[str, Call]:
        """A call for each candidate and, with `library`, the vendor library's; without what cannot be launched."""
        binds: dict[str, Callable[[], Call]] = {VENDOR: self.gemm.vendor} if library else {}
        for name, candidate in self.candidates.items():
            paths = tuple(binary.path for binary in candidate.binaries)
            binds[name] = partial(self.gemm.bind, Launchable(name, paths, candidate.plan, dict(candidate.run_time)))
        calls = {}
        for name, bind in binds.items():
            with said(f"{self.problem.size} {name}"):
                call = bind()
                call(0)
                calls[name] = call
        return calls

    def samplers(self, calls: Mapping[str, Call]) -> dict[str, Sampler]:
        """A sampler of genkern's timer for each call; all use the same copies of the weights in the same order."""
        shortest_us = min(self.timer.launch_us(call, 0) for call in calls.values())
        copies = sample_copies(shortest_us, self.gemm.copies, self.gemm.session.budget.screen_launches)
        samplers = {}
        for name, call in calls.items():
            with said(f"{self.problem.size} {name}"):
                samplers[name] = self.timer.prepare(call, copies)
        return samplers

    def race(self, samplers: Mapping[str, Sampler], rounds: Rounds) -> Finals:
        """genkern's finals among these."""
        return run_finals(samplers, rounds, self.guard)

    def agreeing(self, calls: Mapping[str, Call]) -> dict[str, Call]:
        """Those that compute the same product, within what winners of the format may be off; others are said."""
        import torch

        from genkern.profiling.checking.verdict import worst_row_error

        c, expected = self.gemm.operands["c"], self.gemm.module.reference(self.gemm.operands_of(0))
        limit = get_op(self.problem.op).worst_row_limit(self.problem)
        right = {}
        for name, call in calls.items():
            c.fill_(float("nan"))
            with said(f"{self.problem.size} {name}"):
                call(0)
                torch.cuda.synchronize()
                error = worst_row_error(c, expected)
                if error <= limit:
                    right[name] = call
                else:
                    say(f"{self.problem.size} {name}: computes something else: a row is off by {error:.2g} of it")
        return right

    def times_us(self, calls: Mapping[str, Call], rounds: Rounds) -> dict[str, float]:
        """Medians in microseconds, of the same rounds."""
        finals = self.race(self.samplers(calls), rounds)
        return {name: estimate(samples).median_us for name, samples in finals.samples_us.items() if samples}


class Workbench:
    """Opens problems one after another on one device, with the timer `time_source`. Imports torch."""

    def __init__(self, setting: Setting, build_environment: BuildEnvironment, time_source: str) -> None:
        self.setting = setting
        self.build_environment = build_environment
        self._index = setting.device_indices[0]
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", str(self._index))
        os.environ["TRITON_CACHE_DIR"] = str(Path(build_environment.farm.cache.folder) / "triton_launchers")
        import torch

        # CUPTI wants to be there before the context.
        self.timer = make_timer(time_source)
        self.device = torch.cuda.get_device_name(0)
        self.guard = ThrottleGuard(open_clock(str(torch.cuda.get_device_properties(0).uuid)))

    @contextlib.contextmanager
    def open(self, problem: GemmProblem, configs: Sequence[Config]) -> Iterator[Bench]:
        """The bench of `problem`; configs that do not compile or fit are left out, and said. Once per problem."""
        import torch

        with self.build_environment.open(problem, list(dict.fromkeys(configs)), self._index) as opened:
            build, made = opened.build, opened.candidates(list(dict.fromkeys(configs)))
            candidates = {candidate.config.name: candidate for candidate in made}
            for name, unfit in build.unfit.items():
                say(f"{problem.size} {name}: {unfit.message}")
            builder = Bench(problem, LoadedGemm(build.session), candidates, self.timer, self.guard)
            torch.cuda.synchronize()
            try:
                yield builder
            finally:
                torch.cuda.synchronize()
                del builder
                gc.collect()
                torch.cuda.empty_cache()


def argument_parser(doc: str | None, *, sizes: bool = False, optional: bool = False) -> argparse.ArgumentParser:
    """A parser with what all benchmarks on a GPU take; with `sizes`, a list of sizes comes first.

    `optional`: the results may be left out.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if sizes:
        parser.add_argument("sizes", help="list of sizes")
    parser.add_argument("results", nargs="?" if optional else None, help="results file of genkern, YAML")
    parser.add_argument("-o", "--output", help="full data as JSON lines")
    parser.add_argument("--cache_dir", help="genkern's --cache_dir")
    parser.add_argument("--limit", type=int, help="so many sizes, spread over the file")
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no size after so long (default: 150)")
    return parser


@contextlib.contextmanager
def workbench(arguments: argparse.Namespace, time_source: str = "cudagraph") -> Iterator[Workbench]:
    """The workbench for a parsed command line. Ends the program with one line where genkern itself would."""
    argv = ["-i", arguments.results, *(["--cache_dir", arguments.cache_dir] if arguments.cache_dir else [])]
    with errors_end():
        setting = make_setting(parse(argv))
        if not setting.target.measured:
            raise SystemExit("this benchmark needs a GPU")
        with setting.build_environment(Console(stderr=True)) as build_environment:
            yield Workbench(setting, build_environment, time_source)


def rows_of(arguments: argparse.Namespace) -> list[Result]:
    """The sizes to take, each beginning of which is spread over the file."""
    with errors_end():
        return spread_order(read_results(arguments.results), arguments.limit)


def until(seconds: float, rows: Sequence[Item]) -> Iterator[Item]:
    """The rows, or whatever else there is one of for a size, one by one, until the time is used up."""
    started_s = time.monotonic()
    for number, row in enumerate(rows):
        if time.monotonic() - started_s > seconds:
            say(f"{number} of {len(rows)} sizes done in {seconds:.0f} s, the others left out")
            return
        yield row


@contextlib.contextmanager
def errors_end() -> Iterator[None]:
    """genkern's errors, as one line and status 2."""
    try:
        yield
    except GenkernError as error:
        say(str(error))
        raise SystemExit(2) from None


@contextlib.contextmanager
def said(what: str) -> Iterator[None]:
    """A failure in the block costs what is named, and is said; whole what went wrong first, if that was another: the
    end of a CUDA graph's capture says no more than that something in it has failed.
    """
    try:
        yield
    except Exception as error:
        say(f"{what}: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}")
        first: BaseException = error
        while (before := first.__cause__ or first.__context__) is not None:
            first = before
        if first is not error:
            say("first: " + "".join(traceback.format_exception(first, chain=False))[-MOST_SAID:])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def versions_line(bench: Workbench) -> str:
    """Device and versions, for the head of a table."""
    found = bench.setting.versions
    return f"{bench.device}, Triton {found['triton']}, PyTorch {found.get('torch')}, genkern {found['genkern']}"
