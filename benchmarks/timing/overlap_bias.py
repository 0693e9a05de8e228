"""Whether compiling on all cores changes the times that are measured meanwhile.

    python -m benchmarks.timing.overlap_bias RESULTS.yaml [--candidates CANDIDATES.csv] [-o FULL.jsonl]

Times the winner, five finalists and the vendor library of each size by genkern's timer and rounds, alone (A) and while
the farm compiles on every core into a throwaway cache (B), in the order A B B A. The load is stopped and resumed, so
that nothing but the load changes. The noise to compare with is that of the second A against the first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.figures import DataFile, median, percentile, table
from benchmarks.common.workbench import Bench, argument_parser, rows_of, said, say, until, versions_line, workbench
from benchmarks.timing.compile_load import CompileLoad
from benchmarks.timing.timer_choice import Measured, pick, read_candidates
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.profiling.finals import Rounds

ALONE, LOADED = "alone", "compiling"
PHASES = (ALONE, LOADED, LOADED, ALONE)
ROUNDS = 10
FINALISTS = 5

# For each phase: config -> median microseconds.
Phases = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Bias:
    """One kernel: time under load over time alone, and the second time alone over the first."""

    size: str
    config: str
    alone_us: float
    loaded: float
    noise: float


def biases(size: str, phases: Phases) -> list[Bias]:
    """One Bias for each config that was timed in all phases, in the order of PHASES."""
    found = []
    for config in phases[0]:
        if all(config in phase for phase in phases):
            a, b, c, d = (phase[config] for phase in phases)
            found.append(Bias(size, config, (a + d) / 2, (b + c) / (a + d), d / a))
    return found


def report(found: Sequence[Bias], cores: float) -> str:
    """Markdown: a line per size, then the ratios over all kernels. `cores` is what the load kept busy."""
    sizes: dict[str, list[Bias]] = {}
    for bias in found:
        sizes.setdefault(bias.size, []).append(bias)
    rows = [
        (
            size,
            len(group),
            f"{min(b.alone_us for b in group):.2f}",
            f"{median([b.loaded for b in group]):.4f}",
            f"{median([b.noise for b in group]):.4f}",
        )
        for size, group in sorted(sizes.items(), key=lambda item: min(b.alone_us for b in item[1]))
    ]
    lines = [table(("size", "kernels", "best us", "compiling / alone", "alone / alone"), rows), ""]
    if found:
        ratios = {"compiling / alone": [b.loaded for b in found], "alone / alone": [b.noise for b in found]}
        summaries = [
            (name, len(values), *(f"{percentile(values, share):.4f}" for share in (0.05, 0.25, 0.5, 0.75, 0.95)))
            for name, values in ratios.items()
        ]
        lines += [table(("ratio", "kernels", "p5", "p25", "median", "p75", "p95"), summaries), ""]
    return "\n".join([*lines, f"The load kept {cores:.1f} cores busy."])


def time_phases(bench: Bench, load: CompileLoad, busy: list[tuple[float, float]]) -> Phases:
    """The medians of each phase; adds (CPU seconds, seconds) of the load in its phases to `busy`."""
    samplers = bench.samplers(bench.calls())
    phases = []
    for number, phase in enumerate(PHASES):
        if phase == LOADED:
            load.resume()
        started_s, cpu_s = time.monotonic(), load.cpu_s()
        try:
            finals = bench.race(samplers, Rounds(ROUNDS, ROUNDS, 1.0, number))
        finally:
            load.pause()
        if phase == LOADED:
            busy.append((load.cpu_s() - cpu_s, time.monotonic() - started_s))
        phases.append({name: median(samples) for name, samples in finals.samples_us.items() if samples})
    return phases


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("-c", "--candidates", help="the tuning's --profile_file; without it, winners and vendor only")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compile workers")
    arguments = parser.parse_args(argv)
    # As Ctrl-C: the load must not be left behind, and stopped at that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows, data = rows_of(arguments), DataFile(arguments.output)
    candidates: dict[GemmProblem, list[Measured]] = {}
    if arguments.candidates:
        with open(arguments.candidates, encoding="utf-8", newline="") as file:
            candidates.update(read_candidates(file, {row.problem for row in rows}))
    found: list[Bias] = []
    busy: list[tuple[float, float]] = []
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(workbench(arguments))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="overlap-", ignore_cleanup_errors=True))
        say("starting the load")
        load = CompileLoad(at.setting.target.arch, arguments.jobs, folder)
        stack.callback(load.close)
        load.pause()
        for row in until(arguments.seconds, rows):
            names = pick(candidates.get(row.problem, []), FINALISTS + 1, 0)
            configs = [row.config, *(Config.parse(name) for name in names if name != row.config.name)][: FINALISTS + 1]
            with said(row.problem.size), at.open(row.problem, configs) as bench:
                phases = time_phases(bench, load, busy)
                found += biases(row.problem.size, phases)
                data.add({"size": row.problem.size, "phases": list(PHASES), "us": [dict(phase) for phase in phases]})
        print(f"{versions_line(at)}, {len(os.sched_getaffinity(0))} cores, {arguments.jobs} compile workers\n")
    seconds = sum(wall_s for _, wall_s in busy)
    print(report(found, sum(cpu_s for cpu_s, _ in busy) / seconds if seconds else 0.0))


if __name__ == "__main__":
    main(sys.argv[1:])
