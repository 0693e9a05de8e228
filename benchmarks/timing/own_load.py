"""Long calls under whose load: a winner, its runner-up and the library in turns, and each by itself.

    python -m benchmarks.timing.own_load RESULTS.yaml [--least_us 40] [--limit 12] [--alone_s 0.8] [-o FULL.jsonl]

"alone" is the judge: each runs by itself for so many seconds, twice, of which the second half counts. "interleaved" is
what confirms a winner: single samples of all in shuffled rounds. Both launch the farm's binaries, with the same copies
of the weights. Ratios are another's time over the winner's; one of the rounds is off by what it is over the judge's.
The last table says how long a clock takes to settle when a contender follows another one: the mean time of calls in
each span of its run alone, over the settled one.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.common.figures import DataFile, percentile, table
from benchmarks.common.workbench import (
    Bench,
    argument_parser,
    rows_of,
    said,
    sample_copies,
    until,
    versions_line,
    workbench,
)
from genkern.gemm.config import Config
from genkern.profiling.algorithms import Algorithms, sampled_us, to_sample
from genkern.profiling.finals import confirmation_rounds
from genkern.profiling.loaded_gemm import Call
from genkern.profiling.timers import Sampler
from genkern.result.result import Result
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import TIE_RATIO

WINNER, RUNNER_UP, LIBRARY = "winner", "runner-up", "cublaslt"
ALONE, INTERLEAVED = "alone", "interleaved"
LEAST_ROUNDS, MOST_ROUNDS = 10, 60
# A sample of a run alone is so long that the wait before it, some 0.1 ms without load, leaves the clock as it is.
SAMPLE_US = 5_000.0
# Spans of a run alone, in milliseconds: up to each of these.
SPANS_MS = (5, 10, 20, 30, 60, 120)


@dataclass(frozen=True)
class Alone:
    """A run alone: when each sample began, in microseconds of the device, and what a call took in it."""

    samples: tuple[tuple[float, float], ...]
    mhz: float | None
    watts: float | None

    @property
    def settled_us(self) -> float:
        """The median over the second half."""
        half_us = self.samples[-1][0] / 2
        return median(us for began_us, us in self.samples if began_us >= half_us)

    def spans(self) -> list[float | None]:
        """The mean time of a call in each span of SPANS_MS, over the settled time; None where nothing began."""
        found: list[float | None] = []
        low_us = 0.0
        for high_ms in SPANS_MS:
            inside = [us for began_us, us in self.samples if low_us <= began_us < high_ms * 1e3]
            found.append(fmean(inside) / self.settled_us if inside else None)
            low_us = high_ms * 1e3
        return found


@dataclass(frozen=True)
class Size:
    """What both say of one size: by contender the microseconds of a call; the rounds took `took_s` seconds."""

    name: str
    times_us: Mapping[str, Mapping[str, float]]
    took_s: float
    runs: Mapping[str, Sequence[Alone]]

    def errors(self) -> Iterator[float]:
        """By how much, as a share, ratios of others over the winner are off in the rounds."""
        judge, found = self.times_us[ALONE], self.times_us[INTERLEAVED]
        for name in judge:
            if name != WINNER and name in found:
                yield (found[name] / found[WINNER]) / (judge[name] / judge[WINNER]) - 1

    def ratio(self, protocol: str, name: str) -> float | None:
        times = self.times_us[protocol]
        return times[name] / times[WINNER] if name in times else None


def run_alone(sampler: Sampler, calls: int, alone_us: float) -> list[tuple[float, float]]:
    """Samples one after the other until they took so long: when each began, and what a call took."""
    samples = list[tuple[float, float]]()
    elapsed_us = 0.0
    while elapsed_us < alone_us or len(samples) < 4:
        us = sampler()
        samples.append((elapsed_us, us))
        elapsed_us += us * calls
    return samples


def best_algorithm(builder: Bench) -> Call | None:
    """cuBLASLt's, by a few samples of each; None where it has none."""
    algorithms = Algorithms(builder.gemm)
    calls = {name: algorithms.call(name) for name in algorithms.names()}
    launch_us = dict[str, float]()
    for name, call in calls.items():
        with said(f"{builder.problem.size} {name[:40]}"):
            call(0)
            launch_us[name] = builder.timer.launch_us(call, 1)
    found = sampled_us(
        {name: builder.timer.prepare(calls[name], range(builder.gemm.copies)) for name in to_sample(launch_us)}
    )
    return calls[min(found, key=lambda name: found[name])] if found else None


def contenders(builder: Bench, row: Result) -> dict[str, Call]:
    """The winner, the runner-up, PyTorch's own call and the best algorithm, as far as they can be had.

    Where the winner cannot (no CuTe DSL here), the runner-up takes its place.
    """
    made = builder.calls()
    named = {WINNER: row.config.name if row.config else "", RUNNER_UP: row.runner_up, VENDOR: VENDOR}
    calls = {who: made[name] for who, name in named.items() if name in made}
    if WINNER not in calls and RUNNER_UP in calls:
        calls = {WINNER: calls.pop(RUNNER_UP), **calls}
    with said(f"{row.problem.size} {LIBRARY}"):
        if (call := best_algorithm(builder)) is not None:
            calls[LIBRARY] = call
    return calls


def timed(builder: Bench, calls: Mapping[str, Call], alone_s: float) -> Size:
    """Both; the judge's two runs of each are before and after the rounds."""
    call_us = min(builder.timer.launch_us(call, 0) for call in calls.values())
    copies = sample_copies(call_us, builder.gemm.copies, builder.gemm.session.budget.screen_launches)
    long_copies = [*copies] * max(1, round(SAMPLE_US / (max(call_us, 1.0) * len(copies))))
    single = {name: builder.timer.prepare(call, copies) for name, call in calls.items()}
    long = {name: builder.timer.prepare(call, long_copies) for name, call in calls.items()}
    runs = {name: list[Alone]() for name in calls}

    def judge(order: Sequence[str]) -> None:
        for name in order:
            samples = run_alone(long[name], len(long_copies), alone_s * 1e6)
            runs[name].append(Alone(tuple(samples), builder.guard.read(), builder.guard.watts()))

    order = list(calls)
    random.Random(0).shuffle(order)
    judge(order)
    started_s = time.monotonic()
    found = builder.race(single, confirmation_rounds(LEAST_ROUNDS, MOST_ROUNDS, 0)).samples_us
    took_s = time.monotonic() - started_s
    judge(order[::-1])
    alone = {name: fmean(run.settled_us for run in runs[name]) for name in calls}
    interleaved = {name: median(samples) for name, samples in found.items() if samples}
    return Size(builder.problem.size, {ALONE: alone, INTERLEAVED: interleaved}, took_s, runs)


def report(sizes: Sequence[Size]) -> str:
    """Markdown: ratios by size, by how much those of the rounds are off, and how a clock settles."""
    protocols = ALONE, INTERLEAVED
    others = [name for name in (RUNNER_UP, VENDOR, LIBRARY) if any(name in size.times_us[ALONE] for size in sizes)]
    rows = list[tuple[object, ...]]()
    for size in sizes:
        clocks = [_clock(size.runs[name]) if name in size.runs else "-" for name in (WINNER, LIBRARY)]
        ratios = [_cell(size.ratio(protocol, name), ".4f") for name in others for protocol in protocols]
        rows.append((size.name, f"{size.times_us[ALONE][WINNER]:.1f}", *ratios, *clocks))
    columns = [f"{name} / winner, {protocol}" for name in others for protocol in protocols]
    lines = [table(("size", "winner alone, us", *columns, "winner at", f"{LIBRARY} at"), rows), ""]
    if errors := [abs(error) for size in sizes for error in size.errors()]:
        shares = [f"{value:.2%}" for value in (median(errors), percentile(errors, 0.9), max(errors))]
        wrong = sum(_misjudged(size, name) for size in sizes for name in others)
        row = len(errors), *shares, wrong, f"{median(size.took_s for size in sizes):.2f}"
        lines += [table(("ratios", "off by, median", "p90", "most", "wrong side", "seconds"), [row]), ""]
    spans = [run.spans() for size in sizes for runs in size.runs.values() for run in runs]
    of_spans = [[value for value in column if value is not None] for column in zip(*spans, strict=True)]
    low_ms = 0
    rows = []
    for high_ms, values in zip(SPANS_MS, of_spans, strict=False):
        if values:
            rows.append(
                (
                    f"{low_ms} to {high_ms}",
                    len(values),
                    *(f"{x:.4f}" for x in (min(values), median(values), max(values))),
                )
            )
        low_ms = high_ms
    return "\n".join([*lines, table(("ms after another ran", "runs", "least", "median", "most"), rows)])


def _misjudged(size: Size, name: str) -> bool:
    """Whether the rounds see another one ahead than the judge does, where that is no tie."""
    judge, found = size.ratio(ALONE, name), size.ratio(INTERLEAVED, name)
    if judge is None or found is None or 1 / TIE_RATIO <= judge <= TIE_RATIO:
        return False
    return (judge < 1) != (found < 1)


def _clock(runs: Sequence[Alone]) -> str:
    read = [(run.mhz, run.watts) for run in runs if run.mhz is not None]
    if not read:
        return "-"
    watts = [each for _, each in read if each is not None]
    return f"{fmean(mhz for mhz, _ in read):.0f} MHz" + (f", {fmean(watts):.0f} W" if watts else "")


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--least_us", type=float, default=40.0, help="of the winner's time (default: 40)")
    parser.add_argument("--alone_s", type=float, default=0.8, help="seconds of a run alone (default: 0.8)")
    arguments = parser.parse_args(argv)
    limit, arguments.limit = arguments.limit, None
    rows = [row for row in rows_of(arguments) if row.config and (row.duration_us or 0.0) >= arguments.least_us]
    data, sizes = DataFile(arguments.output), list[Size]()
    with workbench(arguments) as at:
        for row in until(arguments.seconds, rows[:limit]):
            configs = [config for config in (row.config, _parsed(row.runner_up)) if config is not None]
            with said(row.problem.size), at.open(row.problem, configs) as builder:
                calls = contenders(builder, row)
                if WINNER not in calls:
                    continue
                sizes.append(size := timed(builder, calls, arguments.alone_s))
                spans = {name: [run.spans() for run in runs] for name, runs in size.runs.items()}
                data.add({"size": size.name, "times_us": size.times_us, "took_s": size.took_s, "spans": spans})
        print(f"{versions_line(at)}\n")
    if sizes:
        print(report(sizes))


def _parsed(name: str) -> Config | None:
    return Config.parse(name) if name else None


if __name__ == "__main__":
    main(sys.argv[1:])
