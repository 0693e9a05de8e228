"""How many launch plans a size has, and how large: of all configs that its default space leaves, with CuTe DSL's.

    python -m benchmarks.farm.plans [M N K] [--arch sm_90]

A plan is one text for all configs of a binary, and for all binaries that are launched alike. Needs no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from genkern.farm.sharing import compiled_of
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.product import product_of
from genkern.kernels.specs import plan_text
from genkern.ops.op import get_op
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.timing.libraries import OURS


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", nargs="*", type=int, default=[64, 1280, 8192], metavar="M N K")
    parser.add_argument("--arch", default="sm_90")
    arguments = parser.parse_args(argv)
    m, n, k = arguments.size
    problem, gpu = GemmProblem(m, n, k), gpu_for_arch(arguments.arch)
    op = get_op(problem.op)
    kept = prune(space_for_libraries(None, arguments.arch, problem.op, OURS), problem, gpu).kept
    binaries = {compiled_of(config): config for config in kept}
    product = product_of(problem, op, arguments.arch)
    started_s = time.process_time()
    texts = {plan_text(product, config, gpu) for config in binaries.values()}
    seconds = time.process_time() - started_s
    size = sum(map(len, texts))
    print(f"{problem.size}: {len(kept):,} configs, {len(binaries):,} binaries, {len(texts):,} plans in {seconds:.2f} s")
    print(f"plan_bytes_per_size: {size:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
