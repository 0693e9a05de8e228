"""genkern's CUDA-graph timer against CUPTI's kernel records, and ncu's, for the vendor library's call of each size.

    python -m benchmarks.timing.timer_agreement RESULTS.yaml [--ncu] [-o FULL.jsonl]

Every timer runs in a process of its own (CUPTI slows graphs down), in turns: graph, CUPTI, graph, CUPTI; all use the
same rotation of cold weights. CUPTI and ncu see the kernels alone, the graph also what lies between two of them.
ncu runs with clocks and caches as they are: it would lower the one and flush the others.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import DataFile, median, percentile, table
from benchmarks.common.workbench import (
    Bench,
    argument_parser,
    rows_of,
    said,
    sample_copies,
    say,
    until,
    versions_line,
    workbench,
)
from genkern.profiling.finals import Rounds
from genkern.timing.libraries import VENDOR

ROUNDS = 20
METRIC = "gpu__time_duration.sum"
# The kernel of torch.cuda._sleep, which no GEMM launches; it tells the kernels of one size from the next one's.
MARKER = "spin_kernel"
NCU_CALLS = 6
NCU_PLACES = ("/usr/local/cuda/bin/ncu",)
UNIT_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
UNIT_US |= {"nsecond": 1e-3, "usecond": 1.0, "msecond": 1e3, "second": 1e6}
# Beyond this time of a call, what lies between two kernels should not matter.
LONG_US = 50.0


def read_ncu(lines: Iterable[str]) -> list[tuple[str, float]]:
    """Kernel name and duration in microseconds, in the order of launch, from what `ncu --csv` wrote.

    Raises ValueError, with ncu's last words, when it holds no table.
    """
    lines = list(lines)
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        said_last = [line.strip() for line in lines if line.strip()][-1:]
        raise ValueError(f"ncu wrote no table: {said_last[0] if said_last else 'nothing'}")
    rows = csv.DictReader(line for line in lines[start:] if line.startswith('"'))
    return [
        (row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * UNIT_US[row["Metric Unit"]])
        for row in rows
        if row["Metric Name"] == METRIC
    ]


def split_calls(kernels: Sequence[tuple[str, float]], calls: int) -> list[float]:
    """Median time of a call for each group of kernels that a marker begins; the first call of each warms up.

    Raises ValueError when a group is no whole number of kernels per call.
    """
    groups: list[list[float]] = []
    for name, duration_us in kernels:
        if MARKER in name:
            groups.append([])
        elif groups:
            groups[-1].append(duration_us)
    medians = []
    for group in groups:
        if not group or len(group) % calls:
            raise ValueError(f"ncu saw {len(group)} kernels for {calls} calls")
        per_call = len(group) // calls
        sums = [sum(group[i : i + per_call]) for i in range(per_call, len(group), per_call)]
        medians.append(median(sums))
    return medians


def report(times: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Markdown of `times`: timer, size, microseconds of each pass (the median of the passes counts)."""
    us = {timer: {size: median(passes) for size, passes in sizes.items()} for timer, sizes in times.items()}
    others = [timer for timer in us if timer != "cudagraph"]
    rows: list[list[str]] = []
    ratios: dict[str, dict[str, float]] = {timer: {} for timer in others}
    for size, graph_us in sorted(us.get("cudagraph", {}).items(), key=lambda item: item[1]):
        row = [size, f"{graph_us:.2f}"]
        for timer in others:
            if size in us[timer]:
                ratios[timer][size] = graph_us / us[timer][size]
                row += [f"{us[timer][size]:.2f}", f"{ratios[timer][size]:.3f}", f"{graph_us - us[timer][size]:+.2f}"]
            else:
                row += ["-"] * 3
        rows.append(row)
    columns = ["size", "graph us"]
    for timer in others:
        columns += [f"{timer} us", f"graph / {timer}", "us more"]
    lines = [table(columns, rows), ""]
    summaries = []
    for timer, by_size in ratios.items():
        for label, least_us in (("all sizes", 0.0), (f"of {LONG_US:.0f} us and more", LONG_US)):
            found = [ratio for size, ratio in by_size.items() if us["cudagraph"][size] >= least_us]
            if found:
                cells = [f"{value:.3f}" for value in (median(found), min(found), percentile(found, 0.9), max(found))]
                summaries.append([timer, label, len(found), *cells])
    return "\n".join([*lines, table(("graph over", "sizes", "number", "median", "least", "p90", "most"), summaries)])


def child(arguments: argparse.Namespace) -> None:
    """Time the vendor library with one timer; the last line printed is {size: microseconds} as JSON."""
    timer = arguments.child
    times: dict[str, float | None] = {}
    with workbench(arguments, "cupti" if timer == "cupti" else "cudagraph") as at:
        for row in until(arguments.seconds, rows_of(arguments)):
            with at.open(row.problem, [row.config]) as bench, said(row.problem.size):
                if timer == "ncu":
                    launch_for_ncu(bench)
                    times[row.problem.size] = None
                else:
                    samplers = bench.samplers({VENDOR: bench.gemm.vendor()})
                    finals = bench.race(samplers, Rounds(ROUNDS, ROUNDS, 1.0, 0))
                    times[row.problem.size] = median(finals.samples_us[VENDOR])
        say(versions_line(at))
    print(json.dumps(times))


def launch_for_ncu(bench: Bench) -> None:
    """A marker and the vendor library's calls, between start and stop of the profiler."""
    import torch

    call = bench.gemm.vendor()
    copies = sample_copies(1.0, bench.gemm.copies, NCU_CALLS)
    for copy in copies[:-NCU_CALLS]:
        call(copy)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda._sleep(1000)
    for copy in copies[-NCU_CALLS:]:
        call(copy)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def child_argv(arguments: argparse.Namespace, timer: str, limit: int | None) -> list[str]:
    argv = [
        sys.executable,
        "-m",
        "benchmarks.timing.timer_agreement",
        arguments.results,
        "--child",
        timer,
        "--seconds",
        f"{arguments.seconds / 2:g}",
    ]
    if arguments.cache_dir:
        argv += ["--cache_dir", arguments.cache_dir]
    return argv + (["--limit", str(limit)] if limit else [])


def run_child(argv: Sequence[str], timeout_s: float) -> dict[str, Any]:
    """What the child printed last. Raises ValueError when it failed."""
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(str(error)) from None
    lines = done.stdout.strip().splitlines()
    starts = [line for line in lines if line.startswith("{")]
    if done.returncode or not starts:
        raise ValueError(f"status {done.returncode}, last said: {lines[-1:]}")
    found: dict[str, Any] = json.loads(starts[-1])
    return found


def ncu_times(arguments: argparse.Namespace) -> dict[str, float]:
    """Microseconds by size as ncu has them. Raises ValueError."""
    ncu = shutil.which("ncu") or next((place for place in NCU_PLACES if Path(place).exists()), None)
    if ncu is None:
        raise ValueError("ncu is not installed")
    with tempfile.TemporaryDirectory(prefix="ncu-") as folder:
        log = Path(folder) / "ncu.csv"
        argv = [ncu, "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
        argv += ["--metrics", METRIC, "--csv", "--print-units", "base", "--print-kernel-base", "demangled"]
        argv += ["--log-file", str(log)]
        argv += child_argv(arguments, "ncu", arguments.ncu_sizes)
        try:
            sizes = list(run_child(argv, 2 * arguments.seconds))
        except ValueError as error:
            raise ValueError(f"{error}; {log.read_text()[-300:] if log.exists() else 'no log'}") from None
        per_size = split_calls(read_ncu(log.read_text(errors="replace").splitlines()), NCU_CALLS)
    if len(per_size) != len(sizes):
        raise ValueError(f"ncu saw {len(per_size)} sizes of {len(sizes)}")
    return dict(zip(sizes, per_size, strict=True))


def main(argv: Sequence[str]) -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--ncu", action="store_true", help="ncu too")
    parser.add_argument("--ncu_sizes", type=int, default=12, help="sizes for ncu, spread over the file (default: 12)")
    parser.add_argument("--passes", type=int, default=2, help="turns of each timer (default: 2)")
    parser.add_argument("--child", choices=("cudagraph", "cupti", "ncu"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.child:
        return child(arguments)
    data = DataFile(arguments.output)
    times: dict[str, dict[str, list[float]]] = {}
    for turn in range(arguments.passes):
        for timer in ("cudagraph", "cupti"):
            with said(timer):
                for size, us in run_child(child_argv(arguments, timer, arguments.limit), 2 * arguments.seconds).items():
                    times.setdefault(timer, {}).setdefault(size, []).append(us)
                    data.add({"size": size, "timer": timer, "pass": turn, "us": us})
    if arguments.ncu:
        with said("ncu"):
            for size, us in ncu_times(arguments).items():
                times.setdefault("ncu", {})[size] = [us]
                data.add({"size": size, "timer": "ncu", "us": us})
    print(report(times))
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
