"""`genkern calibrate`: measures kernels from all over the space, and fits the cost model's constants to their times.

The fitted constants are kept if, on sizes that were left out of the fit, they rank kernels better than the shipped
constants do. They are used for GPUs without a learned model. One more size is measured and never fitted on: its figures
show how good the ranking is.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from genkern.arguments import Parser, number, underscored
from genkern.cli.options import PROFILERS, parse
from genkern.cli.target import RunTarget, choose_target, devices_to_measure, versions
from genkern.compile.binary_groups import binary_group
from genkern.errors import InputError
from genkern.file_io import shown_path, write_whole
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome, Resources
from genkern.journal.facts import ProblemFacts, read_journal
from genkern.journal.run_files import RunFiles
from genkern.screen import aligned
from genkern.search.cost_model.calibration_file import Calibration, calibration_path, write_calibration
from genkern.search.cost_model.constants import (
    Counted,
    forget_calibrations,
    free_of,
    shipped_constants,
)
from genkern.search.cost_model.fit import Fit, Order, Timed, fit, order_of
from genkern.search.spread import USUAL

# Sizes that determine different constants: short calls latency and launches, long thin ones bandwidth, large ones the
# matrix units.
SIZES = (
    (16, 4096, 4096),
    (64, 6144, 2048),
    (256, 2048, 8192),
    (1024, 4096, 1024),
    (2048, 4096, 4096),
    (8192, 1024, 4096),
)
QUICK = (SIZES[0], SIZES[2], SIZES[4])
# Never fitted on.
FRESH = ((384, 5376, 3584),)
_positive = number("a whole number from 4 to 1000", 4, 1000, integer=True)


def parse_calibrate(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern calibrate`. Raises InputError; SystemExit(0) after printing for --help."""
    p = calibrate_parser()
    return p.parse_args(underscored(argv, p))


def calibrate_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern calibrate",
        description="Fit the predictor's constants to this GPU: without a learned model they decide "
        "what is tried first.",
    )
    group = p.add_argument_group("what to measure")
    count = f"kernels per size (default: {USUAL})"
    group.add_argument("--kernels_a_size", type=_positive, default=USUAL, metavar="N", help=count)
    group.add_argument("--quick", action="store_true", help="half the sizes")
    group.add_argument("--budget", metavar="SECONDSs", help="a hard limit of each size, as when tuning")
    group.add_argument("--space", metavar="FILE", help="as when tuning")
    group.add_argument("--profiler", choices=PROFILERS[:-1], default="auto", metavar="NAME", help="as when tuning")
    group.add_argument("--gpu_id", metavar="N", help="the GPU (default: the first)")
    group.add_argument("--jobs", metavar="N", help="compile processes (default: one per CPU)")
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument(
        *("-o", "--output"),
        metavar="FOLDER",
        default="output/calibration",
        help="folder for the measurements (default: output/calibration)",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def named_folder(output: str) -> Path:
    """Return the folder of -o, created if it does not exist. Raises InputError for an empty name."""
    if not output.strip():
        raise InputError("-o is empty: is a variable of your shell not set?")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_calibrate(options: argparse.Namespace, console: Console) -> int:
    """Measure, fit, store and report; returns 1 if too few kernels were measured. Raises GenkernError."""
    from genkern.cli.run import run

    sizes = QUICK if options.quick else SIZES
    folder = named_folder(options.output)
    listed = [f"- {{'M': {m}, 'N': {n}, 'K': {k}}}\n" for m, n, k in (*sizes, *FRESH)]
    write_whole(str(folder / "sizes.yaml"), "".join(listed))
    tuning = parse(tuning_arguments(options, folder))
    target = choose_target(tuning, devices_to_measure("genkern calibrate"))
    if not target.measured:
        raise InputError("genkern calibrate measures, and this machine has no GPU that genkern can measure on")
    # Sizes without a winner are not failures here: their measurements count.
    if (status := run(tuning, console)) > 1:
        return status
    facts = read_journal(RunFiles(str(folder / "results.yaml")).finished_journal).facts
    timed = {problem: kernels for problem, of in facts.items() if len(kernels := timed_of(of)) > 1}
    fresh = {problem: kernels for problem, kernels in timed.items() if _size(problem) in FRESH}
    known = {problem: kernels for problem, kernels in timed.items() if problem not in fresh}
    if len(known) < 2:
        console.print(
            f"too few kernels ran to fit anything ({sum(map(len, timed.values()))} in all): see genkern status"
        )
        return 1
    shipped = shipped_constants(target.gpu)
    found = fit(known, target.gpu, shipped)
    kept = found.constants if found.is_better else shipped
    said = {"shipped": shipped, "fitted": found.constants}
    orders = {
        problem: {name: order_of(problem, kernels, target.gpu, of) for name, of in said.items()}
        for problem, kernels in timed.items()
    }
    calibration = Calibration(
        *(target.arch, target.gpu.name, target.gpu.compute_units, kept),
        _fitted_on(target, found, {problem: len(kernels) for problem, kernels in timed.items()}, orders),
    )
    write_calibration(calibration, folder / "calibration.json")
    for line in report_lines(shipped, found, orders, fresh):
        console.print(line)
    if found.is_better:
        path = calibration_path(target.gpu)
        write_calibration(calibration, path)
        forget_calibrations()
        console.print(f"kept for {target.gpu.name} in {shown_path(str(path))}")
    else:
        console.print("nothing is kept: the shipped constants order sizes that were not fitted on at least as well")
    return 0


def tuning_arguments(options: argparse.Namespace, folder: Path) -> list[str]:
    """Return the options of the tuning run that measures."""
    argv = ["-i", str(folder / "sizes.yaml"), "-o", str(folder / "results.yaml")]
    # Only the order of screened times is needed, so checks and many rounds are left out.
    argv += [
        "--dtype_a",
        "bf16",
        "--search",
        f"spread:{options.kernels_a_size}",
        "--libtype",
        "triton",
        "--no_check",
        "--iters",
        "10",
    ]
    argv += ["--profiler", options.profiler]
    passed_on = {"--gpu_ids": options.gpu_id, "--jobs": options.jobs, "--cache_dir": options.cache_dir}
    passed_on["--budget"] = options.budget
    for name, value in (passed_on | {"--space": options.space}).items():
        argv += [name, value] if value else []
    return argv


def timed_of(facts: ProblemFacts) -> list[Timed]:
    """Return the kernels of a problem in a journal that have a time, with the resources of their binaries."""
    made = {binary_group(Config.parse(name)): binary.resources for name, binary in facts.made.items()}
    found = []
    for name, measurement in facts.screened.items():
        if measurement.outcome is Outcome.MEASURED and measurement.duration_us:
            config: Config = Config.parse(name)
            needs = made.get(binary_group(config), Resources())
            found.append(Timed(config, needs, measurement.duration_us))
    return found


def report_lines(
    shipped: Counted,
    found: Fit,
    orders: Mapping[GemmProblem, Mapping[str, Order]],
    fresh: Mapping[GemmProblem, object],
) -> list[str]:
    """Return lines with the fitted constants, and how well both sets of constants rank each size's kernels."""
    rows = [["constant", "shipped", "fitted"]]
    fitted = free_of(found.constants)
    rows += [[name, f"{value:g}", f"{fitted[name]:.3g}"] for name, value in free_of(shipped).items()]
    table = [["size", "kernels", "constants", "rank correlation", "place of the best", "best of the first 10", "seen"]]
    for problem, by_name in orders.items():
        for name, order in by_name.items():
            seen = "fresh" if problem in fresh else ""
            numbers = f"{order.rank_correlation:.3f}", f"{order.best_place:.3f}", f"{order.best_of_ten:.3f}"
            table.append([problem.size, str(order.kernels), name, *numbers, seen])
    numbers_are = ("kernels", "rank correlation", "place of the best", "best of the first 10", "shipped", "fitted")
    losses = f"error on sizes left out: {found.shipped_held_out:.4f} shipped, {found.held_out:.4f} fitted"
    return [*aligned(rows, numbers_are), "", *aligned(table, numbers_are), losses]


def _size(problem: GemmProblem) -> tuple[int, int, int]:
    return problem.M, problem.N, problem.K


def _fitted_on(
    target: RunTarget,
    found: Fit,
    kernels: Mapping[GemmProblem, int],
    orders: Mapping[GemmProblem, Mapping[str, Order]],
) -> dict[str, Any]:
    """Return the description of a calibration: date, device, versions, numbers of kernels, and how good it is."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "device": target.device_name,
        "versions": versions(),
        "kernels": {problem.size: count for problem, count in kernels.items()},
        "fitted": free_of(found.constants),
        "is_better": found.is_better,
        "error_left_out": {"shipped": found.shipped_held_out, "fitted": found.held_out},
        "orders": {
            problem.size: {name: asdict(order) for name, order in by_name.items()}
            for problem, by_name in orders.items()
        },
    }
