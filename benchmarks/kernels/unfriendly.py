"""Sizes that nobody chose, to judge kernels by: drawn from a seed, and the table of what tuning them gave.

    python -m benchmarks.kernels.unfriendly --seed 1 --count 60 --write_sizes SIZES.yaml
    python -m genkern -i SIZES.yaml -o RESULTS.yaml --compare
    python -m benchmarks.kernels.unfriendly RESULTS.yaml

M, N and K are log-uniform, a third of each a multiple of 128, a third of 8, a third anything; the four layouts are
equally likely, every fourth size has a bias, every sixth an activation. Kernels are tuned on seed 0, and reported on
others. The table has the library's best over genkern's kernel, and over what is called, by layout and by pitch: whether
rows of A and B in memory are multiples of 128 bytes, of 16, or neither.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from math import exp, log
from random import Random

from benchmarks.common.figures import geomean, table
from benchmarks.common.workbench import errors_end
from benchmarks.kernels.vs_vendor import Compared, compared_of
from genkern.errors import InputError, ResultsError
from genkern.file_io import write_whole
from genkern.files.file_kind import read_results
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem

# From one row, and from what fills an SM, to a large prompt and a large layer.
_RANGES = {"M": (1, 8192), "N": (64, 16384), "K": (64, 16384)}
# Half a second of a kernel at 800 TFLOPS would be 2e14: sizes stay far below.
_MOST_PRODUCTS = 2**38
_STEPS = (128, 8, 1)


def drawn(seed: int, count: int) -> list[GemmProblem]:
    """The first `count` distinct problems of a seed, in bf16."""
    random = Random(seed)
    found: dict[GemmProblem, None] = {}
    while len(found) < count:
        size = {}
        for name, (least, most) in _RANGES.items():
            value, step = round(exp(random.uniform(log(least), log(most)))), random.choice(_STEPS)
            size[name] = max(1, round(value / step)) * step
        row_major_a, row_major_b = random.random() < 0.5, random.random() < 0.5
        bias, bends = random.random() < 1 / 4, random.random() < 1 / 6
        activation = random.choice(("relu", "gelu", "silu")) if bends else "none"
        problem = GemmProblem(
            *(size["M"], size["N"], size["K"]),
            row_major_a=row_major_a,
            row_major_b=row_major_b,
            bias=bias,
            activation=activation,
        )
        if problem.M * problem.N * problem.K <= _MOST_PRODUCTS:
            found[problem] = None
    return list(found)


def pitch_of(problem: GemmProblem) -> str:
    """By which power of two bytes rows of both operands lie apart in memory."""
    a = problem.K if problem.row_major_a else problem.M
    b = problem.N if problem.row_major_b else problem.K
    sizes = [a * DTYPES[problem.dtype_a].size_bytes, b * DTYPES[problem.dtype_b].size_bytes]
    return next((f"{step} bytes" for step in (128, 16) if not any(size % step for size in sizes)), "less")


def report(compared: Iterable[Compared]) -> str:
    """Markdown: a line for each layout and pitch, and one for all."""
    groups: dict[tuple[str, str], list[Compared]] = {}
    for each in compared:
        groups.setdefault((each.row.problem.layout, pitch_of(each.row.problem)), []).append(each)
    everything = [each for group in groups.values() for each in group]
    lines = [(*key, group) for key, group in sorted(groups.items())] + [("all", "", everything)]
    cells = []
    for layout, pitch, group in lines:
        ours = [each.library_us / each.genkern_us for each in group]
        called = [each.library_us / each.called_us for each in group]
        numbers = (geomean(ours), min(ours), geomean(called), min(called))
        cells.append((layout, pitch, len(group), *(f"{number:.3f}" for number in numbers)))
    return table(("A, B", "pitch", "sizes", "library / genkern", "least", "library / called", "least"), cells)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", help="what tuning the sizes gave, YAML")
    parser.add_argument("--write_sizes", metavar="FILE", help="write the sizes of a seed")
    parser.add_argument("--seed", type=int, default=1, help="by which they are drawn (default: 1)")
    parser.add_argument("--count", type=int, default=60, help="how many (default: 60)")
    options = parser.parse_args(argv)
    with errors_end():
        if bool(options.results) == bool(options.write_sizes):
            raise InputError("give the results to report, or --write_sizes FILE")
        if options.count < 1:
            raise InputError("--count is a number from 1")
        if options.write_sizes:
            write_whole(options.write_sizes, "".join(map(size_line, drawn(options.seed, options.count))))
            return
        if not (compared := compared_of(read_results(options.results))):
            raise ResultsError(f"{options.results}: no size has the vendor library's time; tune again with a GPU")
        print(report(compared))


if __name__ == "__main__":
    main(sys.argv[1:])
