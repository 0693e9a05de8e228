"""The command line: what it takes, with units and defaults; `parse` turns it into one namespace."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import NoReturn

from genkern import __version__
from genkern.errors import InputError
from genkern.gpus import known_archs
from genkern.op import op_names
from genkern.space import shipped_names

_EXAMPLES = """examples:
  genkern --gemm_size_file sizes.yaml --compare               tune every size, check each winner
  genkern -m 16 -n 4096 -k 4096 --arch gfx942                 one size; without a GPU times are predicted
  genkern -i untuned.csv -o tuned.csv                         AITER's files
  genkern --compare_wo_tuning --gemm_size_file results.yaml   check results again, exit 1 if any is wrong
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (--help lists the options)")


def parser() -> argparse.ArgumentParser:
    """The parser; its help is the reference of the command line."""
    p = _Parser(
        prog="genkern",
        description="Find the fastest GEMM kernel for each matrix size. C[M, N] = A[M, K] @ B[K, N].",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--version", action="version", version=f"genkern {__version__}")
    _sizes(p.add_argument_group("what to tune"))
    _modes(p.add_argument_group("what to do (default: tune)"))
    _target(p.add_argument_group("for what, and how to measure"))
    _search(p.add_argument_group("search and compile"))
    _output(p.add_argument_group("results"))
    return p


def _sizes(group: argparse._ArgumentGroup) -> None:
    for name in "mnk":
        group.add_argument(f"-{name}", type=_size, metavar=name.upper(), help=f"{name.upper()} of a single size")
    group.add_argument(
        "--gemm_size_file", "-i", "--input_file", metavar="FILE", help="sizes: tune_gemm's YAML, or AITER's untuned CSV"
    )
    group.add_argument("--op", choices=op_names(), help="GEMM format (default: a16w16, or what the file says)")
    for operand in "abc":
        group.add_argument(
            f"--dtype_{operand}",
            f"-dtype_{operand}",
            metavar="TYPE",
            help=f"element type of {operand.upper()}: fp16, bf16, fp32, int8, fp8e4m3fn, fp8e5m2, fp8e4m3fnuz, "
            "fp8e5m2fnuz; fp8 and bf8 are the target's own (default: bf16; a8w8: fp8 with bf16 output)",
        )
    group.add_argument("--col_a", "-col_a", action="store_true", help="A is column-major where the file does not say")
    group.add_argument(
        "--row_b", "-row_b", action="store_true", help="B is row-major where the file does not say (default: [N, K] weights)"
    )
    group.add_argument("--bias_vector", action="store_true", help="add a bias of length N")


def _modes(group: argparse._ArgumentGroup) -> None:
    modes = group.add_mutually_exclusive_group()
    modes.add_argument("--compare", action="store_true", help="check each winner against a float32 reference")
    modes.add_argument(
        "--compare_wo_tuning", action="store_true", help="only check the configs of a results file; exit 1 if any is wrong"
    )
    modes.add_argument("--benchmark", action="store_true", help="only time the configs of a results file")
    modes.add_argument(
        "--explain", action="store_true", help="only print how many configs each pruning rule drops, for each size"
    )


def _target(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--arch", metavar="ARCH", help=f"{', '.join(known_archs())} (default: the GPU found, else gfx942)"
    )
    group.add_argument(
        "--profiler",
        choices=("auto", "rocprofv3", "rocprof", "cupti", "cudagraph", "predict"),
        default="auto",
        help="source of the times (default: auto: rocprofv3 on AMD, cudagraph on NVIDIA, predict without a GPU)",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument("--gpu_ids", type=_gpu_ids, metavar="0,1,...", help="GPUs to measure on (default: 0)")
    which.add_argument("--ngpus", "--mp", type=_positive, metavar="N", help="measure on the first N GPUs")
    group.add_argument(
        "--protocol",
        choices=("genkern", "tune_gemm"),
        default="genkern",
        help="genkern: screen, then re-time the best in shuffled rounds; tune_gemm: ten launches, the last counts",
    )
    group.add_argument("--iters", type=_positive, default=15, metavar="N", help="rounds of re-timing (default: 15)")
    group.add_argument(
        "--warmup", type=_positive, default=1, metavar="N", help="launches before a candidate's first sample (default: 1)"
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
        help="rotate copies of B that together exceed MB MiB, so that it is cold; 0: off (default: twice the last-level cache)",
    )
    group.add_argument(
        "--init_type", choices=("randn", "hpl", "trig_float", "zeros"), default="randn", help="inputs (default: randn)"
    )
    group.add_argument(
        "--errRatio",
        type=_ratio,
        default=0.05,
        metavar="R",
        help="share of elements that may be outside the tolerance, as AITER counts (default: 0.05)",
    )


def _search(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--space",
        metavar="FILE",
        help=f"search space, a YAML file or one of {', '.join(shipped_names())} (default: by architecture)",
    )
    group.add_argument(
        "--jobs", "--num_threads", type=_positive, metavar="N", help="compile processes (default: the CPUs there are)"
    )
    group.add_argument(
        "--cache_dir", metavar="DIR", help="compiled kernels (default: $GENKERN_CACHE_DIR, else ~/.cache/genkern)"
    )
    group.add_argument("--keep", action="store_true", help="keep the generated modules, in DIR/modules")


def _output(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--tuning_results_file",
        "-o",
        "--o",
        "--tuned_file",
        metavar="FILE",
        help="winners: tune_gemm's YAML, or AITER's CSV if it ends in .csv "
        "(default: output/tuning_results_ARCH.yaml); sizes that it holds are skipped",
    )
    group.add_argument("--all", action="store_true", help="tune again what the results file holds")
    group.add_argument("--profile_file", "-o2", metavar="FILE", help="CSV of every candidate with its outcome")
    group.add_argument("--sort", action="store_true", help="sort the results by size")
    group.add_argument(
        "--batch", type=_positive, default=1, metavar="N", help="write the results after every N sizes (default: 1)"
    )
    group.add_argument("-v", "--verbose", action="count", default=0, help="say more: outcomes of each size, where time goes")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options; dashes in the names of long options count as underscores. Raises InputError."""
    options = parser().parse_args([_underscored(argument) for argument in argv])
    single = [getattr(options, name) for name in "mnk"]
    if any(value is not None for value in single) and None in single:
        raise InputError("a single size needs all of -m, -n and -k")
    if options.gemm_size_file is None and None in single and not options.compare_wo_tuning and not options.benchmark:
        raise InputError("nothing to tune: give -m, -n and -k, or --gemm_size_file FILE (--help shows examples)")
    if options.gemm_size_file is not None and None not in single:
        raise InputError("give either -m, -n and -k, or --gemm_size_file, not both")
    options.jobs = options.jobs or len(os.sched_getaffinity(0))
    return options


def _underscored(argument: str) -> str:
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def _size(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None


def _number(text: str, kind: str, least: float, most: float, integer: bool) -> float:
    try:
        value = int(text) if integer else float(text)
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {kind}")
    return value


def _positive(text: str) -> int:
    return int(_number(text, "a whole number from 1 to 100000", 1, 100_000, True))


def _seconds(text: str) -> float:
    return _number(text, "a number of seconds from 0.1 to 86400", 0.1, 86_400, False)


def _megabytes(text: str) -> float:
    return _number(text, "a number of MiB from 0 to 65536", 0, 65_536, False)


def _ratio(text: str) -> float:
    return _number(text, "a share from 0 to 1", 0, 1, False)


def _gpu_ids(text: str) -> tuple[int, ...]:
    try:
        ids = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        ids = (-1,)
    if min(ids) < 0:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a list of GPU numbers such as 0,1")
    return ids
