"""What the farm makes of both kernel languages: kernels compiled a second, and bytes of a kernel.

    python -m benchmarks.farm.two_languages [--kernels 48] [--jobs N]

Of 4096x6144x4096 in bf16 on sm_90 so many kernels of Triton's default space (Gluon included) and of CuTe DSL's, spread
over what pruning leaves, are compiled into an empty cache; then both are asked for again. Needs CuTe DSL, no GPU and no
PyTorch.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.common.figures import table
from genkern.command.target import versions
from genkern.farm.cache import BinaryCache
from genkern.farm.farm import Farm
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.cute.release import MISSING, cute_installed, cute_version
from genkern.kernels.generate import generate
from genkern.kernels.kernel import Target
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.space.languages import space_for_libraries
from genkern.space.prune import prune

PROBLEM = GemmProblem(4096, 6144, 4096)
LANGUAGES = ("triton", "cute")


@dataclass(frozen=True)
class Made:
    """What became of so many kernels of one language."""

    language: str
    wanted: int
    compiled: int
    seconds: float
    again_s: float
    cubin_bytes: tuple[int, ...]


def report(found: Sequence[Made]) -> str:
    """Markdown: a line a language."""
    cells = [
        (
            made.language,
            f"{made.compiled} of {made.wanted}",
            f"{made.compiled / made.seconds:.2f}",
            f"{median(made.cubin_bytes) / 1000:.1f}",
            f"{made.again_s * 1e3:.1f}",
        )
        for made in found
    ]
    return table(("language", "compiled", "kernels a second", "median kB of a cubin", "again, ms"), cells)


def make(language: str, kernels: int, jobs: int) -> Made:
    """Compile `kernels` of a language with `jobs` workers, then ask for them again."""
    gpu = gpu_for_arch("sm_90")
    kept = prune(space_for_libraries(None, "sm_90", PROBLEM.op, [language]), PROBLEM, gpu).kept
    module = generate(PROBLEM, kept, "sm_90", gpu)
    specs = list(
        dict.fromkeys(
            spec
            for config in kept
            for spec in kernel_specs(PROBLEM, config, get_op(PROBLEM.op), module.source_sha256, "sm_90")
        )
    )
    some = [specs[place * len(specs) // kernels] for place in range(min(kernels, len(specs)))]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.py"
        path.write_text(module.kernels_text, encoding="utf-8")
        target = Target(*triton_target(gpu))
        farm = Farm(BinaryCache(Path(folder) / "cache"), target, versions()["triton"], jobs=jobs, timeout_s=300)
        started = time.monotonic()
        results = list(farm.compile(str(path), some))
        between = time.monotonic()
        list(farm.compile(str(path), some))
        ended = time.monotonic()
        binaries = [result for result in results if isinstance(result, Binary)]
        sizes = tuple((Path(binary.path) / "kernel.cubin").stat().st_size for binary in binaries)
        farm.close()
    return Made(language, len(some), len(binaries), between - started, ended - between, sizes)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", type=int, default=48, help="of each language (default: 48)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="compile workers")
    arguments = parser.parse_args(argv)
    if not cute_installed():
        raise SystemExit(MISSING)
    print(report([make(language, arguments.kernels, arguments.jobs) for language in LANGUAGES]))
    here = f"{arguments.jobs} workers, Python {platform.python_version()}"
    print(f"\n{here}, Triton {versions()['triton']}, nvidia-cutlass-dsl {cute_version()}")


if __name__ == "__main__":
    main(sys.argv[1:])
