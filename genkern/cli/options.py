"""The options of the main command, with units and defaults; `parse` turns arguments into one namespace."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from genkern import __version__
from genkern.arguments import Parser, number, underscored
from genkern.cli.bucket_options import add_bucket_options, check_bucket
from genkern.cli.help import ShortHelp
from genkern.cli.invariant_options import add_invariant, check_invariant
from genkern.cli.other_tuners import INSTEAD, require_own_flags
from genkern.cli.usual_target import VARIABLE
from genkern.compile.remote.address import CLUSTER_HELP, read_cluster
from genkern.errors import InputError
from genkern.file_io import is_stream
from genkern.files.config_entry import row_keys
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import known_archs
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import ACTIVATIONS, MAX_DIMENSION
from genkern.kernels.command_line import add_families
from genkern.ops.command_line import add_fields, add_folders, default_types, op_name
from genkern.ops.op import op_names
from genkern.search.command_line import add_strategy
from genkern.space.space import shipped_names
from genkern.subcommands import MODES
from genkern.timing.libraries import ALL, LIBRARIES
from genkern.timing.profiler import TIMERS
from genkern.timing.session import TOLERANCE

PROFILERS = ("auto", "rocprofv3", "rocprof", *TIMERS["amd"], *TIMERS["nvidia"], "predict")
# The default of AITER's tuners (aiter/utility/base_tuner.py).
AITER_ERROR_RATIO = 0.05
# Options that have no effect without a GPU.
ABOUT_MEASURING = ("--protocol", "--iters", "--num_iters", "--warmup", "--rotating_tensor", "--exhaustive", "--lanes")
# Options that also have no effect if nothing is compiled.
ABOUT_SEARCHING = ("--search", "--strategy", "--budget", "--timeout", "--kernels")
# Sizes under way per GPU. A search mostly waits for compiles, and the GPU would be idle; with several lanes it measures
# other sizes meanwhile. 14 cold sizes took 83 s on an H100 with 16 cores with one lane, and 45 s with three.
LANES = 3
_USAGES = {
    "": "genkern (-i FILE | -m M -n N -k K | --model_dir DIR) [--compare] [-o FILE] [options]\n"
    "       genkern COMMAND [options]   (genkern --help lists the commands)",
    "tune": "genkern tune (FILE | -m M -n N -k K | --model_dir DIR) [-o FILE] [options]",
    "check": "genkern check RESULTS [options]",
    "bench": "genkern bench RESULTS [-o FILE] [options]",
    "explain": "genkern explain (FILE | -m M -n N -k K) [options]",
}
_DESCRIPTIONS = {
    "": "Find the fastest GEMM kernel for each matrix size: C = activation(A @ B + bias).",
    "tune": "Find the fastest GEMM kernel for each matrix size: C = activation(A @ B + bias). Without a GPU the\n"
    "choice and its time are predicted.",
    "check": "Check the output of every config of a results file; the exit status is 1 if any is wrong. Without\n"
    "a GPU, configs run under Triton's interpreter on reduced sizes.",
    "bench": "Time every config of a results file beside the library, into a CSV file.",
    "explain": "Count, for each size, the configs that cannot run and those that each pruning rule drops, with the\n"
    "reasons.",
}
_EXAMPLES = """examples:
  genkern --gemm_size_file sizes.yaml --compare              tune every size, check all finalists
  genkern -m 16 -n 4096 -k 4096 --arch gfx942                one size; predicted without a GPU
  genkern -i untuned.csv -o tuned.csv                        AITER's files
  genkern --compare_wo_tuning --gemm_size_file results.yaml  check results; exit 1 if any is wrong
  genkern status results.yaml                                how far a run is; whether it goes on

Names may be written with dashes too: --gemm-size-file. Exit status: 0; 1 when a size has no winner,
or a config is wrong, does not run, or cannot be checked here; 2 for what you must put right (one
line says what); 3 for a bug in genkern; 130 when stopped.
"""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options. Adds `given`, the names of the options that were written, and `tunes`, whether the run tunes.

    `argv` may begin with a word of genkern.subcommands.MODES. Raises InputError; SystemExit(0) after printing for
    --help, --help-all and --version.
    """
    word = argv[0] if argv and argv[0] in MODES else ""
    add_folders(argv)
    # A family from a file (--family) may declare parameters, which become keys of results files.
    PARAMETERS.reserve(row_keys())
    reader = parser(word)
    names = frozenset(reader._option_string_actions)
    arguments = underscored(argv[1:] if word else argv, reader)
    require_own_flags(arguments, names)
    _require_size_of_k(arguments)
    options = reader.parse_args(arguments)
    options.given = frozenset(argument.partition("=")[0] for argument in arguments) & names
    if options.file is not None:
        if options.gemm_size_file is not None:
            raise InputError(f"give one file: {options.file}, or --gemm_size_file {options.gemm_size_file}")
        options.gemm_size_file = options.file
    # Only a run that tunes has a journal, from which the same command resumes.
    results = options.tuning_results_file
    others = options.compare_wo_tuning or options.benchmark or options.explain
    options.tunes = not (others or (results is not None and is_stream(results)))
    _check_sizes(options)
    _check_files(options)
    check_invariant(options)
    of_aiter = options.gemm_size_file is not None and options.gemm_size_file.lower().endswith(".csv")
    if options.errRatio is None:
        # With a tolerance of the user's own, no element may be outside of it.
        asked = {"--atol", "--rtol"} & options.given
        options.errRatio = 0.0 if asked else AITER_ERROR_RATIO if of_aiter else 1.0
    # AITER's tuners use all GPUs unless --mp gives their number.
    options.all_gpus = of_aiter and options.tunes and options.ngpus is None and options.gpu_ids is None
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    options.command = shlex.join(["python", "-m", "genkern", *argv])
    return options


def parser(word: str = "") -> argparse.ArgumentParser:
    """Return the parser of the main command, or of one of its modes (genkern.subcommands.MODES).

    Its help is the reference of the command line.
    """
    p = Parser(
        prog=f"genkern {word}".strip(),
        usage=_USAGES[word],
        description=_DESCRIPTIONS[word],
        epilog="" if word else _EXAMPLES,
    )
    sizes = p.add_argument_group("what to tune" if word in ("", "tune") else "which sizes")
    if word:
        what = "a results file" if word in ("check", "bench") else "the sizes, as -i"
        metavar = "RESULTS" if word in ("check", "bench") else "FILE"
        sizes.add_argument("file", nargs="?", metavar=metavar, help=what)
    _sizes(sizes)
    _modes(p.add_argument_group("what to do (default: tune)" if not word else "checks"), word)
    _target(p.add_argument_group("for which device, and how to measure"))
    _search(p.add_argument_group("search and compile"))
    _results(p.add_argument_group("results"))
    general = p.add_argument_group("general")
    general.add_argument("-v", "--verbose", action="count", default=0, help="print the outcomes of the candidates")
    general.add_argument("-h", "--help", action=ShortHelp, word=word, help="print the most used options and exit")
    general.add_argument("--help_all", "--help-all", action="help", help="print every option and exit")
    modes = dict.fromkeys(("compare", "compare_wo_tuning", "benchmark", "explain"), False) if word else {}
    if flag := MODES.get(word, ""):
        modes[flag.removeprefix("--")] = True
    if word == "tune":
        del modes["compare"]
    p.set_defaults(may_compile=True, shard=None, measures="", **modes)  # set by `genkern measure`
    p.set_defaults(model_list=None)  # set by the command, to the sizes of --model_dir
    if not word:
        p.set_defaults(file=None)
    general.add_argument("--version", action="version", version=f"genkern {__version__}", help="print it and exit")
    return p


def _sizes(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        *("-i", "--gemm_size_file", "--input_file", "--untune_file"),
        metavar="FILE",
        help="the sizes: tune_gemm's YAML, AITER's untuned CSV (a name in .csv), or results of either",
    )
    group.add_argument(
        "--model_dir",
        metavar="DIR",
        help="the sizes of a model, from its folder or config.json (default: none; genkern shapes offers more options)",
    )
    group.add_argument(
        "--tp", type=_positive, default=1, metavar="N", help="with --model_dir: GPUs that share each layer (default: 1)"
    )
    group.add_argument(
        "--nsets",
        type=row_counts,
        metavar="M,M,...",
        help="with --model_dir: numbers of tokens per step (default: those of genkern shapes)",
    )
    for name, what in (("m", "rows of A and C"), ("n", "columns of B and C"), ("k", "columns of A, rows of B")):
        group.add_argument(f"-{name}", type=_size, metavar=name.upper(), help=f"one size instead of a file: {what}")
    group.add_argument(
        "--op",
        metavar="OP",
        type=op_name,
        help=f"number format: {_either(op_names())}, or the folder of a format of your own (default: by the types)",
    )
    add_families(group)
    own = "fp8 and bf8 are the target's own"
    for operand, help in (
        ("a", f"type of A: {', '.join(DTYPES)}; {own} (default: {default_types(0)})"),
        ("b", "type of B (default: that of A, or the one that the format pairs with it)"),
        ("c", f"type of C (default: {default_types(2)})"),
    ):
        aiters = {"a": ("--indtype",), "c": ("--outdtype",)}.get(operand, ())
        group.add_argument(f"--dtype_{operand}", f"-dtype_{operand}", *aiters, metavar="TYPE", help=help)
    group.add_argument("--col_a", "-col_a", action="store_true", help="A is column-major (default: row-major)")
    add_fields(group)
    layout_b = group.add_mutually_exclusive_group()
    layout_b.add_argument("--row_b", "-row_b", action="store_true", help="B is row-major")
    layout_b.add_argument(
        "--col_b", "-col_b", action="store_true", help="B is column-major, as [N, K] weights are: the default"
    )
    group.add_argument("--bias_vector", action="store_true", help="add a bias of length N")
    group.add_argument(
        "--all_bias",
        action="store_true",
        help="tune every size with a bias and without, whatever the list of sizes has",
    )
    group.add_argument(
        "--activation",
        choices=ACTIVATIONS,
        default="none",
        metavar="NAME",
        help="applied last, in float32, before the one cast to C's type: none, relu, gelu (the exact one, with erf) "
        "or silu (default: none)",
    )


def _modes(group: argparse._ArgumentGroup, word: str) -> None:
    """Add the modes, unless the subcommand `word` is one of them, and the options of checks."""
    modes = group.add_mutually_exclusive_group()
    if word in ("", "tune"):
        modes.add_argument(
            "--compare",
            action="store_true",
            help="tune, check every finalist rather than the winners alone, and show the error figures; "
            "without a GPU, check the winners under Triton's interpreter",
        )
    if not word:
        modes.add_argument("--compare_wo_tuning", action="store_true", help="only check the configs of a results file")
        modes.add_argument(
            "--benchmark",
            action="store_true",
            help="only time the configs of a results file, into -o as CSV (default: output/benchmarking_results.csv)",
        )
        modes.add_argument(
            "--explain", action="store_true", help="only count what each pruning rule drops, for each size"
        )
    group.add_argument("--no_check", action="store_true", help="accept winners unchecked; the results record that")
    group.add_argument(
        "--errRatio",
        type=_ratio,
        metavar="R",
        help="an extra limit: the share of output elements outside --atol and --rtol, as AITER counts them "
        f"(default: 1; {AITER_ERROR_RATIO:g} for sizes from a .csv, as AITER's; 0 if --atol or --rtol is given)",
    )
    for name, what in (("atol", "absolute tolerance"), ("rtol", "tolerance relative to the reference")):
        group.add_argument(
            f"--{name}",
            type=_tolerance,
            default=TOLERANCE,
            metavar="T",
            help=f"{what} of --errRatio: |C - ref| <= atol + rtol |ref| (default: {TOLERANCE:g})",
        )


def _target(group: argparse._ArgumentGroup) -> None:
    archs = ", ".join(known_archs())
    group.add_argument(
        "--arch",
        metavar="ARCH",
        help=f"architecture: {archs}, or of a file in GENKERN_GPU_FILES (default: that of the GPU found; without a "
        f"GPU that of the results that are read, else ${VARIABLE})",
    )
    group.add_argument(
        "--device",
        metavar="NAME",
        help="the GPU model, as 'NVIDIA H100' or h100: measure only on GPUs of this model, or predict for it without "
        "one (default: the GPU found, else as --arch)",
    )
    group.add_argument(
        "--profiler",
        choices=PROFILERS,
        default="auto",
        metavar="NAME",
        help=f"source of the times: {_either(PROFILERS[1:])} "
        "(default: auto: rocprofv3 on AMD, cudagraph on NVIDIA, predict without a GPU)",
    )
    which = group.add_mutually_exclusive_group()
    numbers = "the GPUs to measure on, of those that are visible (default: the first; all for sizes from a .csv)"
    which.add_argument("--gpu_ids", type=_gpu_ids, metavar="0,1,...", help=numbers)
    which.add_argument("--ngpus", "--mp", type=_positive, metavar="N", help="measure on the first N GPUs")
    group.add_argument(
        "--shared_gpu",
        action="store_true",
        help="record in the results that another program uses the GPU meanwhile; times of an idle GPU replace them",
    )
    group.add_argument(
        "--protocol",
        choices=("genkern", "tune_gemm"),
        default="genkern",
        metavar="NAME",
        help="genkern: screen all, then time the best again in shuffled rounds; "
        "tune_gemm: ten launches, of which the last counts (default: genkern)",
    )
    rounds = group.add_mutually_exclusive_group()
    most = "most rounds in which the best are timed (default: 60)"
    rounds.add_argument("--iters", type=_positive, default=60, metavar="N", help=most)
    rounds.add_argument(
        "--num_iters",
        type=_positive,
        metavar="N",
        help="exactly this number of rounds (default: until the times settle)",
    )
    group.add_argument(
        "--warmup",
        type=_positive,
        default=1,
        metavar="N",
        help="launches before a first sample (default: 1, none in screening if the best candidate takes over 0.5 ms)",
    )
    group.add_argument(
        "--timeout",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="seconds that one compile, or one candidate's measurement, may take (default: 30)",
    )
    group.add_argument(
        "--rotating_tensor",
        type=_megabytes,
        metavar="MB",
        help="size in MiB of the copies of B that calls rotate through, so that B is cold; 0: one copy "
        "(default: twice the last-level cache)",
    )
    group.add_argument(
        "--libtype",
        metavar="A,B",
        default=ALL,
        help=f"which libraries may win: {ALL}, or some of {', '.join(LIBRARIES)}, separated by commas "
        f"(default: {ALL}, with cute and aiter if they are installed)",
    )
    cold = "make the kernel's code cold too (NVIDIA GPUs only; default: warm)"
    group.add_argument("--icache_flush", action="store_true", help=cold)
    group.add_argument(
        "--init_type",
        choices=("randn", "hpl", "trig_float", "zeros"),
        default="randn",
        metavar="NAME",
        help="values of the inputs: randn, hpl (uniform in -0.5 .. 0.5), trig_float (sines) or zeros (default: randn)",
    )


def _search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--space",
        metavar="FILE",
        help=f"search space: a YAML file, or {_either(shipped_names())} (default: the full one of the architecture)",
    )
    jobs = "compile processes (default: one a CPU, fewer while sizes are measured meanwhile)"
    group.add_argument("--jobs", "--num_threads", type=_positive, metavar="N", help=jobs)
    lanes = f"most sizes under way per GPU, measured in turn; use 1 if other programs use the GPU (default: {LANES})"
    group.add_argument("--lanes", type=_positive, default=LANES, metavar="N", help=lanes)
    instead = f"compile on Dask's nodes: {CLUSTER_HELP} (default: here)"
    group.add_argument("--cluster", type=read_cluster, metavar="ADDRESS", help=instead)
    group.add_argument(
        "--cache_dir",
        metavar="DIR",
        help="folder of compiled kernels (default: $GENKERN_CACHE_DIR, else ~/.cache/genkern)",
    )
    instead = "a file of genkern kernels, from which kernels that the cache lacks are taken (default: $GENKERN_KERNELS)"
    group.add_argument("--kernels", metavar="FILE", help=instead)
    add_strategy(group)
    group.add_argument(
        "--compile",
        action="store_true",
        help="without a GPU, search as --search says and compile into the cache, for machines with GPUs (default: "
        "without a GPU nothing is compiled, unless --keep or --cluster is given)",
    )
    add_invariant(group)
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="leave out configs whose result may differ from run to run (float atomics); sizes whose winner is one "
        "are tuned again",
    )
    group.add_argument(
        "--keep",
        action="store_true",
        help="keep the generated modules, in modules/ of --cache_dir; with --benchmark they hold the winners only",
    )


def _results(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        *("-o", "--o", "--tuning_results_file", "--tuned_file", "--tune_file"),
        metavar="FILE",
        dest="tuning_results_file",
        help="the winners: AITER's CSV for a name in .csv, else tune_gemm's YAML; sizes that it already "
        "holds are skipped "
        "(default: output/tuning_results_ARCH.yaml, with _predicted before .yaml without a GPU)",
    )
    group.add_argument(
        "-o2", "--profile_file", metavar="FILE", help="CSV of every candidate that was not pruned, with its outcome"
    )
    group.add_argument(
        "--progress_file",
        metavar="FILE",
        help="for programs that show the progress of a run: a file to which a line of JSON is appended when the "
        "candidates of a size are measured, and when it ends (default: none)",
    )
    add_bucket_options(group)
    group.add_argument(
        "--all",
        action="store_true",
        help="tune the sizes in the results file again; their old configs take part, "
        "so that a worse one cannot replace them",
    )
    group.add_argument(
        "--sort",
        nargs="?",
        type=_truth,
        const=True,
        default=False,
        metavar="True",
        help="sort the results by size (default: False, in the order of the sizes)",
    )
    group.add_argument(
        "--batch",
        type=_positive,
        default=1,
        metavar="N",
        help="write the results after every N sizes, or later (default: 1)",
    )


def _check_sizes(options: argparse.Namespace) -> None:
    single = [getattr(options, name) for name in "mnk"]
    if options.no_check and (options.compare or options.compare_wo_tuning):
        raise InputError("--no_check and --compare contradict each other: give one of them")
    named = any(value is not None for value in single)
    if options.compare_wo_tuning or options.benchmark:
        mode = "--compare_wo_tuning" if options.compare_wo_tuning else "--benchmark"
        if options.bucket is not None:
            raise InputError(f"--bucket tunes, and {mode} does not: give one of them")
        if named or options.model_dir is not None or (options.gemm_size_file or options.tuning_results_file) is None:
            raise InputError(f"{mode} reads a results file: give it with --gemm_size_file FILE, without -m, -n and -k")
        return
    if options.model_dir is None and (idle := {"--tp", "--nsets"} & options.given):
        raise InputError(f"{min(idle)} belongs to --model_dir: give that too")
    if options.model_dir is not None and "--batch_size" in options.given:
        raise InputError(
            "--batch_size is an option of batched formats here; for gradlib's, multiply the numbers of --nsets by it"
        )
    if options.model_dir is not None and (named or options.gemm_size_file is not None or options.bucket is not None):
        raise InputError("--model_dir gives the sizes: give it without -m, -n, -k, --gemm_size_file and --bucket")
    check_bucket(options)
    if options.bucket is not None:
        single = [0, *single[1:]] if named else single
    if named and None in single:
        raise InputError("a single size needs all of -m, -n and -k")
    if options.gemm_size_file is None and options.model_dir is None and not named:
        raise InputError(
            "nothing to tune: give -m, -n and -k, --gemm_size_file FILE or --model_dir DIR (--help shows examples)"
        )
    if options.gemm_size_file is not None and named:
        raise InputError("give either -m, -n and -k, or --gemm_size_file, not both")


def _check_files(options: argparse.Namespace) -> None:
    """Raise InputError if an option's value is empty, if -o is JSON, if an output is also an input, or if two outputs
    are one file."""
    sizes, results, profile = options.gemm_size_file, options.tuning_results_file, options.profile_file
    named = {"--gemm_size_file": sizes, "-o": results, "--profile_file": profile, "--space": options.space}
    named |= {
        "--model_dir": options.model_dir,
        "--cache_dir": options.cache_dir,
        "--kernels": options.kernels,
        "--arch": options.arch,
        "--device": options.device,
    }
    for option, given in named.items():
        if given == "":
            raise InputError(f"{option} is empty: is a variable of your shell not set?")
    if results is not None and results.lower().endswith(".json"):
        raise InputError(f"-o {results}: results are YAML, or AITER's CSV if the name ends in .csv: give another -o")
    if profile is not None and any(_same_file(profile, other) for other in (sizes, results)):
        raise InputError(f"--profile_file {profile} is the file of the sizes or the results too: give it another name")
    if options.benchmark and _same_file(sizes, results):
        raise InputError(f"--benchmark would write its times over {results}: give another -o")


def _same_file(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and Path(one).resolve() == Path(other).resolve()


def _require_size_of_k(arguments: Sequence[str]) -> None:
    """Raise InputError for -k without a number: in AITER's tuners -k means split-K."""
    for place, argument in enumerate(arguments):
        if argument == "-k" and not re.match(r"[+-]?[0-9.]|[^-]", "".join(arguments[place + 1 : place + 2])):
            raise InputError(f"-k is the K of one size here; AITER's -k means --splitK: {INSTEAD['--splitK']}")


def row_counts(text: str) -> tuple[int, ...]:
    """Parse `1,16,64` to sorted, unique numbers. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"[0-9]{1,10}(,[0-9]{1,10}){0,999}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of numbers, such as 1,16,64")
    found = sorted({int(each) for each in text.split(",")})
    if not 1 <= found[0] <= found[-1] <= MAX_DIMENSION:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} has a number that is not from 1 to {MAX_DIMENSION}")
    return tuple(found)


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]


def _size(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number")
    return int(text)


_positive = number("a whole number from 1 to 100000", 1, 100_000, integer=True)
_seconds = number("a number of seconds from 0.1 to 86400", 0.1, 86_400)
_megabytes = number("a number of MiB from 0 to 65536", 0, 65_536)
_ratio = number("a share from 0 to 1", 0, 1)
_tolerance = number("a number from 0 to 1e6", 0, 1e6)


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is neither True nor False")
    return text.lower() in ("true", "1")


def _gpu_ids(text: str) -> tuple[int, ...]:
    ids: tuple[int, ...] = (-1,)
    with contextlib.suppress(ValueError):
        ids = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    if min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of GPU numbers such as 0,1")
    return ids
