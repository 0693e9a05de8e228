"""Seconds of one core in which a size is pruned, from the space to the table of configs that are kept.

    python -m benchmarks.search.pruning [--rounds 20]

Needs no GPU. Times are processor times of this process, so that other programs on the machine matter little; the first
round, in which modules are imported and properties of the problem are found, is not counted.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Sequence
from statistics import median

import numpy as np

from benchmarks.common.figures import table
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.timing.libraries import CUTE, TRITON

# The first is the figure prune_s.
SIZES = (
    ("sm_90", GemmProblem(4096, 4096, 4096)),
    ("sm_90", GemmProblem(16, 6144, 4096)),
    ("sm_90", GemmProblem(632, 136, 4584, row_major_a=False, row_major_b=True)),
    ("sm_100", GemmProblem(4096, 4096, 4096)),
    ("sm_80", GemmProblem(4096, 4096, 4096)),
    ("gfx942", GemmProblem(4096, 4096, 4096)),
    ("gfx942", GemmProblem(16, 5120, 5120)),
)


def seconds(arch: str, problem: GemmProblem, rounds: int) -> tuple[float, int, int]:
    """Return the median processor seconds of pruning, the configs of the space, and the configs kept."""
    space, gpu = space_for_libraries(None, arch, problem.op, (TRITON, CUTE)), gpu_for_arch(arch)
    pruned = prune(space, problem, gpu)
    times = []
    for _ in range(rounds):
        started = time.process_time()
        pruned = prune(space, problem, gpu)
        times.append(time.process_time() - started)
    return median(times), space.size, len(pruned.kept)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of which the median is taken")
    options = parser.parse_args(argv)
    found = [(arch, problem, *seconds(arch, problem, options.rounds)) for arch, problem in SIZES]
    print(f"Python {platform.python_version()}, NumPy {np.__version__}\n")
    rows = [(arch, problem.name, f"{size:,}", f"{kept:,}", f"{s:.3f}") for arch, problem, s, size, kept in found]
    print(table(("arch", "problem", "space", "kept", "s"), rows))
    print(f"\nprune_s: {found[0][2]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
