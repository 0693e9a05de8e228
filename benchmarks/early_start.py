"""What it saves that kernels are on the device before what lies ahead of them in the stream has ended.

    python benchmarks/early_start.py RESULTS.yaml

Of each tuned size the winner is launched so (programmatic dependent launch) and as any other kernel, beside the library
(the algorithm that the row names, else PyTorch's call): call behind call, as winners are timed, and each call behind a
kernel of PyTorch's that writes A, which knows of no dependent launch. All are timed in the same rounds.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from figures import DataFile, geomean, table
from workbench import Bench, argument_parser, rows_of, said, until, versions_line, workbench

from genkern.formats.tuned_row import TunedRow
from genkern.gemm.libraries import CUBLASLT, library_of
from genkern.kernels.plan import LaunchPlan
from genkern.profiling import loaded_gemm
from genkern.profiling.algorithms import Algorithms
from genkern.profiling.finals import Rounds
from genkern.profiling.loaded_gemm import Call, Launchable

EARLY, LATE, LIBRARY = "early", "late", "library"
BEHIND = " behind another"
ROUNDS = 40


@dataclass(frozen=True)
class Size:
    """One size: microseconds a call by contender, and of those with BEHIND together with the kernel ahead."""

    size: str
    config: str
    times_us: dict[str, float]

    def ratio(self, slow: str, fast: str) -> float:
        return self.times_us[slow] / self.times_us[fast]

    def less_us(self, slow: str, fast: str) -> float:
        return self.times_us[slow] - self.times_us[fast]


def late_plan(plan: str) -> str:
    """The plan whose launches wait, as any other, until what lies ahead of them has ended."""
    early = LaunchPlan.from_json(plan)
    return replace(early, launches=tuple(replace(launch, starts_early=False) for launch in early.launches)).to_json()


def late_binary(load: Callable[..., Any], module: Any, path: str) -> Any:
    """Triton's kernel of a cache entry, for such launches: its launcher says how, not the plan."""
    kernel = copy.copy(load(module, path))
    run = copy.copy(kernel.run)
    run.launch_pdl = False
    kernel._run = run
    return kernel


def calls_of(bench: Bench, row: TunedRow) -> dict[str, Call]:
    """The contenders, each alone and behind a kernel of PyTorch's."""
    (candidate,) = bench.candidates.values()
    paths = tuple(binary.path for binary in candidate.binaries)
    calls = {EARLY: bench.gemm.bind(Launchable(EARLY, paths, candidate.plan))}
    with mock.patch.object(loaded_gemm, "load_binary", partial(late_binary, loaded_gemm.load_binary)):
        calls[LATE] = bench.gemm.bind(Launchable(LATE, paths, late_plan(candidate.plan)))
    algorithm = row.vendor if library_of(row.vendor) == CUBLASLT else ""
    calls[LIBRARY] = Algorithms(bench.gemm).call(algorithm) if algorithm else bench.gemm.vendor()
    a = bench.gemm.operands["a"]

    def behind(call: Call) -> Call:
        def both(number: int) -> None:
            a.neg_()
            call(number)

        return both

    return calls | {name + BEHIND: behind(call) for name, call in calls.items()}


def report(found: Sequence[Size]) -> str:
    """Markdown: a line a size, and geometric means of the ratios."""
    pairs = [(LATE, EARLY), (LIBRARY, EARLY)]
    cells = []
    for one in found:
        alone = [f"{one.times_us[name]:.2f}" for name in (EARLY, LATE, LIBRARY)]
        less = [f"{one.less_us(slow + BEHIND, fast + BEHIND):.2f}" for slow, fast in pairs]
        cells.append((one.size, *alone, *(f"{one.ratio(*pair):.3f}" for pair in pairs), *less, one.config))
    head = "size", "early us", "late us", "library us", "late / early", "library / early"
    behind = "late - early us, behind", "library - early us, behind"
    lines = [table((*head, *behind, "config"), cells)]
    if found:
        means = [f"{slow} / {fast} {geomean([one.ratio(slow, fast) for one in found]):.4f}" for slow, fast in pairs]
        lines += ["", f"{len(found)} sizes, geometric means: {', '.join(means)}"]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> None:
    arguments = argument_parser(__doc__).parse_args(argv)
    found: list[Size] = []
    data = DataFile(arguments.output)
    with workbench(arguments) as at:
        for row in until(arguments.seconds, rows_of(arguments)):
            with said(row.problem.size), at.open(row.problem, [row.config]) as bench:
                times = bench.times_us(calls_of(bench, row), Rounds(ROUNDS, ROUNDS, 60.0, 0))
                found.append(Size(row.problem.size, row.config.name, times))
                data.add(asdict(found[-1]))
        print(f"{versions_line(at)}\n")
    print(report(found))


if __name__ == "__main__":
    main(sys.argv[1:])
