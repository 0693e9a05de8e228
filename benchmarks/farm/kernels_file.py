"""How many compiles sizes of a fresh seed need, of what they would try first, with a file of `genkern kernels`.

    python -m benchmarks.farm.kernels_file FILE.kernels [--seed 2] [--first 22 48] [--jobs 16]
    python -m benchmarks.farm.kernels_file --count 4000 [--arch sm_90]

With --count it is the file that would be written, chosen from input_sizes/ and not compiled. The sizes are those that
benchmarks.search.recorded_sizes draws. The prices of compiles are in farm/rate. Needs no GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence

from rich.console import Console

from benchmarks.search.recorded_sizes import drawn
from genkern.command.shipped.choice import Ranking, WantedUnit, chosen
from genkern.command.shipped.kernels import kernels_parser, ranked_by_size, sizes_for, spaces_for, with_rows_between
from genkern.command.target import versions
from genkern.farm.shipped.kernels_file import KernelsFile
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.kernels.kernel import Target


def missing(units: Sequence[WantedUnit], first: int, there: Collection[str]) -> int:
    """How many binaries of the first units are not there."""
    return len({key for unit in units[:first] for key in unit.keys if key not in there})


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", metavar="FILE.kernels")
    parser.add_argument("--count", type=int, default=4000, metavar="N")
    parser.add_argument("-i", "--gemm_size_file", nargs="+", metavar="SIZES", help="choose from these lists instead")
    parser.add_argument("--op", nargs="+", metavar="OP", help="sizes of these formats only")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--first", type=int, nargs="+", default=[22, 48], metavar="N")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args(argv)
    fresh = [problem for problem in drawn(arguments.seed) if not arguments.op or problem.op in arguments.op]
    gpu = gpu_for_arch(arguments.arch)
    target = Target(*triton_target(gpu))
    there: Collection[str]
    if arguments.file:
        there = kernels = KernelsFile(arguments.file)
        print(f"{arguments.file}: {len(kernels)} kernels, {os.path.getsize(arguments.file)} bytes")
        print(f"kernels_file_mib: {os.path.getsize(arguments.file) / 2**20:.2f}")
    else:
        options = kernels_parser().parse_args(["--arch", arguments.arch, "-o", os.devnull])
        options.gemm_size_file, options.op = arguments.gemm_size_file, arguments.op
        sizes = with_rows_between(sizes_for(options, Console()))
        ranking = Ranking(gpu, target, versions()["triton"], spaces_for(sizes, arguments.arch), 64)
        choice = chosen(ranked_by_size(sizes, ranking, arguments.jobs), arguments.count)
        there = choice.keys
        print(f"{len(choice.keys)} kernels, at least the first {choice.first} of each of {len(sizes)} sizes")
    ranking = Ranking(gpu, target, versions()["triton"], spaces_for(fresh, arguments.arch), max(arguments.first))
    wanted = ranked_by_size(fresh, ranking, arguments.jobs)
    by_op: dict[str, list[list[int]]] = defaultdict(list)
    for problem, units in wanted.items():
        counts = [missing(units, first, there) for first in arguments.first]
        by_op[problem.op].append(counts)
        print(f"{problem.name}: {', '.join(map(str, counts))} to compile of the first {arguments.first}")
    for place, first in enumerate(arguments.first):
        each = [counts[place] for found in by_op.values() for counts in found]
        print(
            f"compiles of the first {first}, {len(each)} sizes: median {statistics.median(each):g}, mean "
            f"{statistics.mean(each):.1f}, most {max(each)}, none in {each.count(0)}"
        )
        for op, found in sorted(by_op.items()):
            of = [counts[place] for counts in found]
            print(f"  {op}: median {statistics.median(of):g}, most {max(of)}, {len(of)} sizes")


if __name__ == "__main__":
    main(sys.argv[1:])
