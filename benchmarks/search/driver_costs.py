"""What a size costs before anything is compiled, and what someone who reads genkern has to know.

    python -m benchmarks.search.driver_costs [--repeats 9]

Seconds to prune 4096x4096x4096 (bf16, TN) in the default space of sm_90 with CuTe's families; bytes of all launch plans
of 64x1280x8192 in the default space; how many families there are and what a record of one says; lines of golden texts;
words of all documents. No GPU is needed. Seconds are the median of `repeats` runs in one process, after another one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median

from benchmarks.common.figures import table
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import FAMILIES
from genkern.kernels.contract.family import Family
from genkern.kernels.contract.form import Form
from genkern.kernels.contract.product import product_of
from genkern.kernels.specs import plan_text
from genkern.ops.op import get_op
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune
from genkern.space.space import load_space

ROOT = Path(__file__).resolve().parents[2]
ARCH = "sm_90"
CUBE, FEW_ROWS = GemmProblem(4096, 4096, 4096), GemmProblem(64, 1280, 8192)


def prune_s(problem: GemmProblem, repeats: int) -> float:
    """Seconds in which the default space is pruned, CuTe's families among it: the median of so many runs."""
    space, gpu = space_for_libraries(None, ARCH, problem.op, ("triton", "cute")), gpu_for_arch(ARCH)
    times_s = []
    for _ in range(repeats + 1):
        started_s = time.perf_counter()
        prune(space, problem, gpu)
        times_s.append(time.perf_counter() - started_s)
    return median(times_s[1:])


def plan_bytes(problem: GemmProblem) -> tuple[int, int, int]:
    """Bytes of the launch plans of all configs that pruning leaves, how many plans there are, and configs."""
    gpu = gpu_for_arch(ARCH)
    configs = prune(load_space(None, ARCH, problem.op), problem, gpu).kept
    product = product_of(problem, get_op(problem.op), ARCH)
    texts = {plan_text(product, config, gpu) for config in configs}
    return sum(map(len, texts)), len(texts), len(configs)


def documents() -> list[Path]:
    """What a reader finds: pages at the top, of docs/, and the READMEs of benchmarks and results."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "benchmarks" / "README.md"]
    return sorted([*pages, *ROOT.glob("results/*/README.md")])


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(argv)
    size_bytes, plans, configs = plan_bytes(FEW_ROWS)
    golden = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests" / "golden").glob("*.expected"))
    rows = [
        ("prune_s", f"{prune_s(CUBE, options.repeats):.2f}"),
        ("plan_bytes_per_size", f"{size_bytes:,} ({plans:,} plans, {configs:,} configs)"),
        ("families", len(FAMILIES)),
        ("family_fields", f"{len(fields(Family))} (of a form: {len(fields(Form))})"),
        ("golden_lines", f"{golden:,}"),
        ("doc_words", f"{sum(len(path.read_text().split()) for path in documents()):,}"),
    ]
    print(table(("figure", "value"), rows))


if __name__ == "__main__":
    main()
