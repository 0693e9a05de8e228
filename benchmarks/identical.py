"""How many configs compile to the machine code of another one, so that they need not be measured.

    python benchmarks/identical.py [8192x8192x8192:gfx942:fp16 ...] [--space NAME] [--binaries N] [--jobs N]

Needs no GPU and no PyTorch; compiles each binary once, in the user's cache. `--binaries` takes all configs of
some tiles, chosen at random, until that many binaries are needed. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

from farm import triton_target_of

from genkern.command.target import versions
from genkern.farm.cache import BinaryCache
from genkern.farm.farm import Farm
from genkern.farm.workshop import Job, Workshop
from genkern.files import cache_folder
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.kernels.catalogue import form_of
from genkern.space.prune import prune
from genkern.space.space import load_space
from genkern.timing.session import Budget

DEFAULT = ("8192x8192x8192:gfx942:fp16", "4096x6144x4096:sm_90:bf16")


def sampled(configs: Sequence[Config], binaries: int) -> list[Config]:
    """All configs of about so many binaries, in their order; 0 takes them all.

    Chosen at random are tiles, with everything that the compiler alone sees, so that no copy is cut off.
    """
    tiles: dict[tuple[object, ...], list[Config]] = defaultdict(list)
    for config in configs:
        blocks = config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K
        tiles[(form_of(config).stem, *blocks, config.num_warps)].append(config)
    order = sorted(tiles)
    random.Random(0).shuffle(order)
    chosen: set[Config] = set()
    for tile in order:
        if binaries and len({replace(c, GROUP_SIZE_M=1, SPLIT_K=min(c.SPLIT_K, 2)) for c in chosen}) >= binaries:
            break
        chosen.update(tiles[tile])
    return [config for config in configs if config in chosen]


def row(case: str, space_name: str | None, binaries: int, jobs: int) -> str:
    """One line of the table: what becomes of the configs of one size."""
    size, arch, dtype = case.split(":")
    m, n, k = map(int, size.split("x"))
    problem, gpu = GemmProblem(m, n, k, "a16w16", dtype, dtype, dtype), gpu_for_arch(arch)
    space = load_space(space_name, arch, problem.op)
    configs = sampled(prune(space, problem, gpu).kept, binaries)
    cache = BinaryCache(cache_folder(None) / "binaries")
    farm = Farm(cache, triton_target_of(arch), versions()["triton"], jobs=jobs, timeout_s=60)
    with tempfile.TemporaryDirectory() as folder, closing(farm):
        workshop = Workshop(farm, gpu, arch, Budget(), init_type="randn", module_dir=folder, keep_modules=False)
        with workshop.open(problem, configs, 0) as job:
            measured = sum(1 for _ in job.candidates)
        keys = {binary.key for binary in job.binaries.values()}
        codes = {binary.resources.code_sha256 for binary in job.binaries.values()}
    outcomes = Counter(unfit.outcome for unfit in job.unfit.values())
    others = ", ".join(f"{name.value} {count}" for name, count in outcomes.items() if name is not Outcome.IDENTICAL)
    return (
        f"| {size} {dtype} {arch}, {space.name} | {len(configs):,} | {len(keys):,} | {len(codes):,} | "
        f"{outcomes[Outcome.IDENTICAL]:,} | {measured:,} | {others or '-'} | {reasons(job)} |"
    )


def reasons(job: Job) -> str:
    """The fields in which copies differ from what is measured for them, by how often."""
    found: Counter[str] = Counter()
    for name, unfit in job.unfit.items():
        if unfit.outcome is Outcome.IDENTICAL:
            one, other = Config.parse(name), Config.parse(unfit.message.rpartition(" ")[2])
            fields = ("family", *PARAMETERS.by_name)
            found[" and ".join(field for field in fields if getattr(one, field) != getattr(other, field))] += 1
    return ", ".join(f"{fields} {count}" for fields, count in found.most_common(5)) or "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT, help=f"size:arch:dtype (default: {' '.join(DEFAULT)})")
    parser.add_argument("--space", help="as the command's (default: that of the architecture)")
    parser.add_argument("--binaries", type=int, default=0, help="take tiles until so many are needed (default: all)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    print("| size, space | configs | binaries | distinct codes | identical | measured | others | copies differ in |")
    print("|---|---|---|---|---|---|---|---|")
    for case in arguments.cases:
        print(row(case, arguments.space, arguments.binaries, arguments.jobs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
