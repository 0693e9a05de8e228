"""`genkern model`: one command from a model to a bundle of winners for it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser
from genkern.cli.options import parse
from genkern.cli.run import run
from genkern.cli.target import RunTarget, choose_target
from genkern.errors import InputError, ResultsError
from genkern.file_io import require_writable, shown_path, write_whole
from genkern.files.file_kind import require_list_or_none
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.packing.command import pack_rows, parse_pack
from genkern.packing.models.captured_sizes import capture_sizes
from genkern.packing.models.coverage import coverage_of, coverage_text
from genkern.packing.models.products import Product, products_of
from genkern.packing.models.shapes import add_model_options, config_of, engine_of, rows_of_engine
from genkern.packing.models.tuned_sizes import TunedSizes
from genkern.runtime.bundles.bundle import SUFFIX, is_bundle, read_bundle, require_bundle_or_none
from genkern.runtime.bundles.shipped_bundles import shipped_bundles
from genkern.screen import put_table

# Seconds for the first size and for each further one: guided_first_size_s and guided_s_per_size of
# results/figures.yaml.
_FIRST_S, _NEXT_S = 5.2, 1.8
# Seconds per size without a GPU on two cores, for an architecture with a learned model, and for one whose kernels are
# compiled.
_PREDICTED_S = 1, 7


def parse_model(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern model`. Raises InputError; SystemExit(0) after printing for --help."""
    options = model_parser().parse_args(_with_options(argv))
    if (options.model is None) == (options.capture is None):
        raise InputError("genkern model: name a model's folder or its config.json, or a program behind --capture")
    if options.capture == []:
        raise InputError("--capture: name the program to run behind it, such as --capture python serve.py")
    if options.output is None:
        if options.capture or not options.dry_run:
            raise InputError(f"genkern model: -o FILE names the bundle to write, *{SUFFIX}")
    elif not options.output.endswith(SUFFIX):
        raise InputError(f"-o {options.output}: name a bundle, *{SUFFIX}; results go beside it")
    return options


def _with_options(argv: Sequence[str]) -> list[str]:
    """Return the command line with --options and its value joined: argparse takes `--batch_invariant` for an option.

    The value of --options may start with a dash.
    """
    own = list(argv)
    end = own.index("--capture") if "--capture" in own else len(own)
    if "--options" in own[: end - 1]:
        at = own.index("--options")
        own[at : at + 2] = [f"--options={own[at + 1]}"]
    return own


def model_parser() -> Parser:
    """Return the parser of `genkern model`, whose help is the reference of the command."""
    p = Parser(
        prog="genkern model",
        description="Tune the GEMMs that one GPU computes for a model, and pack the winners. Results are written\n"
        "beside the bundle. If the command was interrupted, the same command continues.",
    )
    group = p.add_argument_group("which model")
    group.add_argument("model", nargs="?", metavar="MODEL", help="the model's folder, or its config.json")
    add_model_options(group)
    group = p.add_argument_group("what to do")
    group.add_argument("-o", "--output", metavar="FILE", help=f"the bundle to write, *{SUFFIX}; a dry run needs none")
    group.add_argument(
        "--results",
        nargs="+",
        default=[],
        metavar="FILE",
        help="results files and bundles to take winners from, in addition to shipped bundles",
    )
    group.add_argument("--dry_run", action="store_true", help="list the sizes, write nothing")
    group.add_argument("--predicted", action="store_true", help="without a GPU: let the cost model choose")
    group.add_argument("--arch", metavar="ARCH", help="architecture to predict for")
    group.add_argument("--device", metavar="NAME", help="GPU of that architecture to predict for, as 'NVIDIA H100'")
    group.add_argument(
        "--options",
        default="",
        metavar="TEXT",
        help="options of tuning, in one argument: '--ngpus 8 --budget 64'",
    )
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument(
        "--capture",
        nargs=argparse.REMAINDER,
        metavar="PROGRAM",
        help="last, in place of MODEL: run PROGRAM once, and take the sizes that it calls",
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_model(options: argparse.Namespace, console: Console) -> int:
    """Tune missing sizes and pack all winners. Raises GenkernError.

    Returns 1 if a size has no winner, or a winner cannot be packed or is wrong; 3 if a bug in genkern is the reason.
    """
    # A dry run needs no name: nothing is written, and no files of the placeholder's name are read.
    place = Path(options.output or f"model{SUFFIX}").with_suffix("")
    if options.output:
        require_bundle_or_none(options.output, True)
        require_writable(options.output)
        require_list_or_none(f"{place}.sizes.yaml", True)
    tuning, target = _tuning(options, place)
    products, every = _products(options, place, target, console)
    problems = list(dict.fromkeys(problem for product in products for problem in product.problems))
    done = _done(options, place, problems, tuning, target, console)
    missing = done.missing()
    if options.dry_run:
        _list(products, set(missing), console)
        console.print(f"{len(problems)} sizes, {len(missing)} of them not tuned for {target.device_name}; dry run")
        if missing:
            console.print(_estimate(len(missing), tuning, options.predicted))
        return 0
    if missing and not (target.measured or options.predicted):
        raise InputError(
            f"{len(missing)} of {len(problems)} sizes are not tuned, and this machine has no GPU to measure on: "
            "--predicted packs the cost model's choices (for --arch or --device), --dry_run lists the sizes"
        )
    status = 0
    if missing:
        write_whole(f"{place}.sizes.yaml", "".join(map(size_line, missing)))
        status = run(tuning, console)
        if status == 3:
            return status
        done = _done(options, place, problems, tuning, target, None)
    packing = ["--overwrite", "--predicted"] if options.predicted else ["--overwrite"]
    packing += ["--cache_dir", options.cache_dir] if options.cache_dir else []
    if not (done.rows or done.taken):
        raise ResultsError(f"nothing to pack: no size has a winner for {target.device_name}")
    packed = pack_rows(done.rows, parse_pack([f"{place}.yaml", "-o", options.output, *packing]), console, done.taken)
    found = coverage_of(read_bundle(options.output), done.identity, target.gpu, every)
    console.print(f"{shown_path(options.output)} {coverage_text(found)}")
    console.print(f"GENKERN_CONFIG={shlex.quote(options.output)} lets a program call it")
    return max(status, packed)


def _tuning(options: argparse.Namespace, place: Path) -> tuple[argparse.Namespace, RunTarget]:
    """Return the options of tuning the missing sizes, and the target. Raises InputError."""
    argv = ["-i", f"{place}.sizes.yaml", "-o", f"{place}.yaml"]
    argv += ["--cache_dir", options.cache_dir] if options.cache_dir else []
    argv += ["--arch", options.arch] if options.arch else []
    argv += ["--device", options.device] if options.device else []
    # Predicted kernels need no --compare: without a GPU it could check only some of them.
    argv += ["--profiler", "predict"] if options.predicted else ["--compare"]
    try:
        more = shlex.split(options.options)
    except ValueError as error:
        raise InputError(f"--options: {error}") from None
    # The list of missing sizes may not exist yet, so it is not read here.
    tuning = parse([*argv, *more])
    return tuning, choose_target(tuning)


def _products(
    options: argparse.Namespace, place: Path, target: RunTarget, console: Console
) -> tuple[list[Product], list[Product]]:
    """Return the products to tune, and the products for every number of rows that the engine has. Raises InputError."""
    if options.capture:
        problems = capture_sizes(
            options.capture, Path(f"{place}.recorded"), target.arch, console, run=not options.dry_run
        )
        products = [Product("recorded", problem.size, (problem,), 1) for problem in problems]
        return products, products
    config, engine = config_of(options.model, options), engine_of(options)
    products, told = products_of(config, engine, options.tp, rows_of_engine(options, engine))
    for note in told:
        console.print(f"note: {note}")
    every, _ = products_of(config, engine, options.tp, options.nsets or engine.rows)
    return products, every


def _done(
    options: argparse.Namespace,
    place: Path,
    problems: Sequence[GemmProblem],
    tuning: argparse.Namespace,
    target: RunTarget,
    console: Console | None,
) -> TunedSizes:
    """Return the sizes that are tuned in this command's results, in the named files, and in shipped bundles.

    Prints the number of sizes in each file if `console` is given.
    """
    done = TunedSizes(problems, target.key, options.predicted, tuning.batch_invariant)
    named = [str(path) for path in (Path(f"{place}.yaml"),) if options.output and path.exists()] + options.results
    # Results files first: a bundle contributes only problems that have no row yet.
    for path in [*sorted(named, key=is_bundle), *shipped_bundles()]:
        if (count := done.add(path)) and console is not None:
            console.print(f"{count} of {len(problems)} sizes are in {shown_path(path)}")
    return done


def _estimate(count: int, tuning: argparse.Namespace, predicted: bool) -> str:
    """Return a line with the estimated time of tuning, from seconds per size that were measured on another machine."""
    if predicted:
        least, most = (_clock(count * seconds) for seconds in _PREDICTED_S)
        return f"estimate: {least} to {most} to choose without a GPU, {_PREDICTED_S[0]} to {_PREDICTED_S[1]} s per size"
    gpus = len(tuning.gpu_ids or ()) or tuning.ngpus or 1
    seconds = _FIRST_S + (count - 1) * _NEXT_S / gpus
    return (
        f"estimate: {_clock(seconds)} to tune them on {gpus} GPU{'s' if gpus > 1 else ''} by the default search, "
        f"{_NEXT_S} s per size (measured on an H200 with 16 CPU cores; fewer cores take longer)"
    )


def _clock(seconds: float) -> str:
    """Return a duration as text in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _list(products: Sequence[Product], missing: set[GemmProblem], console: Console) -> None:
    lines: list[tuple[str, ...]] = [("layer", "layers", "size", "op", "types", "state")]
    seen: set[GemmProblem] = set()
    for product in products:
        for problem in product.problems:
            types = f"{problem.dtype_a} {problem.dtype_b} {problem.dtype_c}"
            state = "listed above" if problem in seen else "to tune" if problem in missing else "tuned"
            lines.append((product.layer, str(product.count), problem.size, problem.op, types, state))
            seen.add(problem)
    put_table(console, "size", lines, ("layers",))
