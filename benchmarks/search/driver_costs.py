"""What a size costs before anything is compiled, and what someone who reads genkern has to know.

    python -m benchmarks.search.driver_costs [--repeats 9]

Seconds to prune 4096x4096x4096 (bf16, TN) in the default space of sm_90 with CuTe's families; how many families there
are and what a record of one says; lines of golden texts; words of all documents. No GPU is needed. Seconds
are the median of `repeats` runs in one process, after another one.
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
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune

ROOT = Path(__file__).resolve().parents[2]
ARCH = "sm_90"
CUBE = GemmProblem(4096, 4096, 4096)


def prune_s(problem: GemmProblem, repeats: int) -> float:
    """Seconds in which the default space is pruned, CuTe's families among it: the median of so many runs."""
    space, gpu = space_for_libraries(None, ARCH, problem.op, ("triton", "cute")), gpu_for_arch(ARCH)
    times_s = []
    for _ in range(repeats + 1):
        started_s = time.perf_counter()
        prune(space, problem, gpu)
        times_s.append(time.perf_counter() - started_s)
    return median(times_s[1:])


def documents() -> list[Path]:
    """All documents of the checkout, each once; folders of tools, whose names begin with a dot, have none."""
    inside = (path.relative_to(ROOT) for path in ROOT.glob("**/*.md"))
    return sorted({(ROOT / path).resolve() for path in inside if not any(part.startswith(".") for part in path.parts)})


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args(argv)
    golden = sum(len(path.read_text().splitlines()) for path in (ROOT / "tests" / "golden").glob("*.expected"))
    rows = [
        ("prune_s", f"{prune_s(CUBE, options.repeats):.2f}"),
        ("families", len(FAMILIES)),
        ("family_fields", f"{len(fields(Family))} (of a form: {len(fields(Form))})"),
        ("golden_lines", f"{golden:,}"),
        ("doc_words", f"{sum(len(path.read_text().split()) for path in documents()):,}"),
    ]
    print(table(("figure", "value"), rows))


if __name__ == "__main__":
    main()
