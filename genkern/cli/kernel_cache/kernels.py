"""`genkern kernels`: compiles the first candidates of sizes, without a GPU, into one file for the --kernels of runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path

from rich.console import Console

from genkern.arguments import Parser, number
from genkern.cli.kernel_cache.kernel_choice import Choice, Ranking, WantedUnit, chosen
from genkern.cli.target import add_gpu, require_gpu, versions
from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.farm import Farm
from genkern.compile.kernels_file import SUFFIX, Files, KernelsFile, MadeFor, write_kernels
from genkern.compile.remote.address import CLUSTER_HELP, read_cluster
from genkern.compile.remote.dask_pool import DaskPool
from genkern.errors import InputError, OutputError
from genkern.file_io import cache_folder, require_absent, require_writable, shown_path
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.gpus import triton_target
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.journal.run_folder import modules_folder
from genkern.kernels.cute.release import cute_installed
from genkern.kernels.kernel import Target
from genkern.ops.op import check_problem, get_op, op_names
from genkern.space.languages import space_for_libraries
from genkern.space.space import Space
from genkern.timing.libraries import ALL, CUTE, parse_libraries
from genkern.timing.session import Budget
from genkern.tuning.progress import Progress

_COUNT, _MOST = 4000, 100_000
_SHARING = 8
_LEAST_UNITS = 64
# M that size lists leave out, ordered so that neighbours are far apart; and how many of them each weight gets.
_ROWS_BETWEEN = (2, 100, 3000, 8, 333, 24, 5, 1500, 50, 11, 700, 3, 200, 6000, 37)
_OF_A_WEIGHT = 3
# The size lists of a checkout. A wheel has none.
SIZES = Path(__file__).resolve().parents[3] / "input_sizes"
_positive = number("a whole number from 1 to 100000", 1, _MOST, integer=True)
_seconds = number("a number of seconds from 0.1 to 86400", 0.1, 86_400)


def parse_kernels(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern kernels`. Raises InputError; SystemExit(0) after printing for --help."""
    options = kernels_parser().parse_args(argv)
    require_gpu(options)
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    return options


def kernels_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern kernels",
        description="Compile the kernels that a search of sizes tries first, and write them into one file, from which\n"
        "a run with --kernels FILE starts. No GPU is needed.",
    )
    group = p.add_argument_group("which kernels")
    add_gpu(group)
    group.add_argument(
        "-i",
        "--gemm_size_file",
        nargs="+",
        metavar="SIZES",
        help="size lists (default, in a checkout: those of input_sizes/, with further M between)",
    )
    group.add_argument("--op", nargs="+", choices=op_names(), metavar="OP", help="only sizes of these formats")
    group.add_argument(
        "--count", type=_positive, default=_COUNT, metavar="N", help=f"largest number of kernels (default: {_COUNT})"
    )
    group.add_argument("-o", "--output", metavar="FILE", required=True, help=f"the file to write, usually *{SUFFIX}")
    group.add_argument(
        "--overwrite", action="store_true", help="replace an existing file of kernels, but no other file"
    )
    add_compiling(group)
    return p


def add_compiling(group: argparse._ArgumentGroup) -> None:
    """Add the options that `compiled_entries` reads."""
    group.add_argument("--jobs", type=_positive, metavar="N", help="compile processes (default: one per CPU)")
    group.add_argument(
        "--timeout", type=_seconds, default=60.0, metavar="S", help="time limit of one compile in seconds (default: 60)"
    )
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument(
        "--cluster", type=read_cluster, metavar="ADDRESS", help=f"compile on Dask's nodes: {CLUSTER_HELP}"
    )
    group.add_argument("-h", "--help", action="help", help="print this and exit")


def run_kernels(options: argparse.Namespace, console: Console) -> int:
    """Choose, compile and write kernels. Raises InputError or OutputError."""
    require_absent(options.output, options.overwrite)
    _require_kernels_or_none(options.output)
    require_writable(options.output)
    problems = sizes_for(options, console)
    if options.gemm_size_file is None:
        problems = with_rows_between(problems)
    spaces = spaces_for(problems, options.arch)
    # Sizes share binaries, so each is ranked _SHARING times as deep as it would be without sharing.
    most = max(_LEAST_UNITS, -(-_SHARING * options.count // len(problems)))
    made = compiled_entries(problems, spaces, most, options.count, options, console)
    length = write_kernels(options.output, made.files, made.made_for)
    console.print(
        f"{len(made.files)} kernels ({made.refused} refused) for {len(problems)} sizes, at least the first "
        f"{made.first} of each: {length} bytes in {shown_path(options.output)}"
    )
    note_lost(made, console)
    return 0


@dataclass(frozen=True)
class Compiled:
    """Compiled kernels.

    files: entries of the cache, by key
    refused: number of entries that are refused kernels
    lost: number of kernels that could not be compiled for other reasons
    first: every size has at least this number of its first units, or all of them
    made_for: what the keys depend on
    """

    files: Mapping[str, Files]
    refused: int
    lost: int
    first: int
    made_for: MadeFor


def compiled_entries(
    problems: Sequence[GemmProblem],
    spaces: Mapping[str, Space],
    most: int,
    count: int | None,
    options: argparse.Namespace,
    console: Console,
) -> Compiled:
    """Compile the first `most` units (kernel_choice.py) of each size, and no more than `count` kernels (None: any
    number).

    `options` are those of `add_compiling` and `require_gpu`. Raises OutputError.
    """
    target, triton = Target(*triton_target(options.gpu)), versions()["triton"]
    folder = cache_folder(options.cache_dir)
    with contextlib.ExitStack() as stack:
        cache = BinaryCache(folder / "binaries")
        modules = str(stack.enter_context(modules_folder(folder)))
        where = {"jobs": options.jobs, "timeout_s": options.timeout, "temporary_dir": modules}
        stack.callback(_end_workers, options.jobs)
        made_for = MadeFor.here(target, triton)
        pool = DaskPool(options.cluster, cache, made_for, console.print) if options.cluster else None
        farm = Farm(cache, target, triton, pool=pool, **where)
        stack.callback(farm.close)
        wanted = ranked_by_size(problems, Ranking(options.gpu, target, triton, spaces, most), options.jobs)
        farm.connect()
        choice = chosen(wanted, sys.maxsize if count is None else count)
        build_environment = BuildEnvironment(
            farm, options.gpu, options.arch, Budget(), init_type="randn", module_dir=modules, keep_modules=False
        )
        results = compiled(choice, build_environment, stack.enter_context(Progress(console)))
    entries = {key: cache.files(key) for key in results if cache.get(key) is not None}
    refused = sum(isinstance(results[key], Failure) for key in entries)
    return Compiled(entries, refused, len(results) - len(entries), choice.first, made_for)


def note_lost(made: Compiled, console: Console) -> None:
    """Print the number of kernels for which the compiler did not run to its end, for example on a full disk."""
    if made.lost:
        console.print(f"note: {made.lost} kernels could not be compiled here, and are left out")


def sizes_for(options: argparse.Namespace, console: Console) -> list[GemmProblem]:
    """Return the sizes to compile for, without duplicates. Raises InputError if there are none.

    Sizes in input_sizes/ that the architecture cannot compute are left out; in the user's own lists they raise
    InputError.
    """
    own = options.gemm_size_file is None
    lists = sorted(map(str, SIZES.glob("*.yaml"))) if own else options.gemm_size_file
    if not lists:
        raise InputError("this genkern was installed without lists of sizes: give some with -i")
    found: dict[GemmProblem, None] = {}
    left_out = 0
    for path in lists:
        for problem in read_sizes(path, GemmDefaults(), options.arch).problems:
            if options.op and problem.op not in options.op:
                continue
            try:
                check_problem(problem, options.arch)
            except InputError:
                if not own:
                    raise
                left_out += 1
                continue
            found[problem] = None
    if not found:
        raise InputError(
            f"no sizes {'of ' + ', '.join(options.op) if options.op else ''} for {options.arch} in the lists"
        )
    if left_out:
        console.print(f"note: {left_out} sizes of input_sizes/ are not for {options.arch}")
    return list(found)


def with_rows_between(problems: Sequence[GemmProblem]) -> list[GemmProblem]:
    """Return the problems, and for each of their weights some M that servers use and size lists leave out.

    Such M need kernels with masks; the M of lists are mostly multiples of tiles. Grouped formats get no further M.
    """
    weights = dict.fromkeys(replace(problem, M=1) for problem in problems if get_op(problem.op).groups is None)
    rows = cycle(_ROWS_BETWEEN)
    more = [replace(weight, M=next(rows)) for weight in weights for _ in range(_OF_A_WEIGHT)]
    return list(dict.fromkeys([*problems, *more]))


def spaces_for(problems: Sequence[GemmProblem], arch: str) -> dict[str, Space]:
    """Return the spaces that a run without options searches, by format."""
    libraries = [name for name in parse_libraries(ALL).split(",") if name != CUTE or cute_installed()]
    return {op: space_for_libraries(None, arch, op, libraries) for op in {problem.op for problem in problems}}


def ranked_by_size(problems: Sequence[GemmProblem], ranking: Ranking, jobs: int) -> dict[GemmProblem, list[WantedUnit]]:
    """Return what each size would try first. Ranking takes half a second per size, so `jobs` processes do it."""
    # joblib takes as long to import as genkern.
    from genkern.compile.pool import map_in_order

    return dict(zip(problems, map_in_order(ranking.of, problems, min(jobs, len(problems))), strict=True))


def compiled(choice: Choice, build_environment: BuildEnvironment, progress: Progress) -> dict[str, Binary | Failure]:
    """Return the result of each chosen binary, by key. All sizes are open at the same time, so that no worker is
    idle."""
    results: dict[str, Binary | Failure] = {}
    with contextlib.ExitStack() as stack:
        advance = stack.enter_context(progress.problem("kernels", len(choice.keys), build_environment.farm.counts))
        benches = [
            stack.enter_context(build_environment.open(each, configs, 0)) for each, configs in choice.configs.items()
        ]
        for builder, configs in zip(benches, choice.configs.values(), strict=True):
            builder.request_binaries([(rank, (config,)) for rank, config in enumerate(configs)])
        for builder in benches:
            while builder.next_built(wait=True) is not None:
                advance(len(builder.results.keys() - results.keys()))
                results |= builder.results
    return results


def _require_kernels_or_none(path: str) -> None:
    """Raise OutputError if --overwrite would replace another kind of file."""
    if os.path.isfile(path) and os.path.getsize(path):
        try:
            KernelsFile(path)
        except InputError:
            raise OutputError(
                f"{shown_path(path)} is not a file of kernels; --overwrite replaces only such files; name another -o"
            ) from None


def _end_workers(jobs: int) -> None:
    if jobs > 1:
        from genkern.compile.pool import end

        end()
