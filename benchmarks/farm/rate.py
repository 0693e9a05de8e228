"""Figures of the compile farm: its rate against bare triton.compile loops, a second run, the driver's peak memory.

    python -m benchmarks.farm.rate [rate] [rerun] [memory] [--kernels 240] [--jobs N]

Needs no GPU and no PyTorch. Ratios are of times taken in turns in one run. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from genkern.cli.target import versions
from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.compiler import use_quiet_triton
from genkern.compile.farm import Farm
from genkern.gemm.gpus import gpu_for_arch, triton_target
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.generate import generate
from genkern.kernels.kernel import KernelSpec, Target
from genkern.kernels.refusal import refused_by_compiler
from genkern.kernels.source import ast_source, load_module
from genkern.kernels.specs import kernel_specs
from genkern.ops.op import get_op
from genkern.space.prune import prune
from genkern.space.space import Space, load_space
from genkern.timing.session import Budget

# The default spaces have more than 1,000 binaries for each of these.
RATE_PROBLEMS = (("gfx942", GemmProblem(64, 1280, 8192)), ("sm_90", GemmProblem(4096, 6144, 4096)))
RERUN_PROBLEMS = (
    ("sm_90", GemmProblem(4096, 6144, 4096)),
    ("gfx942", GemmProblem(1024, 8192, 28672)),
    ("gfx942", GemmProblem(8192, 8192, 8192)),
)
MEMORY_ARCH, MEMORY_PROBLEM = "gfx942", GemmProblem(8192, 8192, 8192)
ROUNDS = 2
# Stands in for a binary where compiling all of them would take an hour: about as long as the larger half of
# them, since the cache hashes every byte when it looks one up.
STAND_IN = bytes(24_000)
STAND_IN_RESOURCES = Resources(registers=128, spills=0, shared_bytes=32_768, scratch_bytes=0)

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chunk:
    """Kernels of one architecture that each contender of the rate compiles, without a cache between them."""

    arch: str
    module_path: str
    specs: tuple[KernelSpec, ...]

    def split(self, parts: int) -> list[Chunk]:
        return [Chunk(self.arch, self.module_path, self.specs[part::parts]) for part in range(parts)]


def triton_target_of(arch: str) -> Target:
    return Target(*triton_target(gpu_for_arch(arch)))


def bare_loop(chunk: Chunk) -> float:
    """Seconds of a loop over triton.compile in this process, with the same settings as the farm's; imports excluded."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as triton_compile

    target = triton_target_of(chunk.arch)
    gpu_target = GPUTarget(target.backend, target.arch, target.warp_size)
    # Beside the module: the default folder is that of the loop before, which is gone.
    with tempfile.TemporaryDirectory(prefix="bare-", dir=Path(chunk.module_path).parent) as temporary:
        use_quiet_triton(temporary)
        module = load_module(chunk.module_path)
        started = time.perf_counter()
        for spec in chunk.specs:
            try:
                triton_compile(ast_source(module, spec), target=gpu_target, options=dict(spec.options))
            except Exception as error:
                # A kernel that the compiler refuses costs both contenders the same.
                if not refused_by_compiler(error, chunk.module_path):
                    raise
        return time.perf_counter() - started


def bare_crowd(pool: ProcessPoolExecutor, chunk: Chunk) -> float:
    """Seconds until the pool's bare processes, each taking the next kernel when it is free, have done the chunk."""
    started = time.perf_counter()
    list(pool.map(bare_loop, chunk.split(len(chunk.specs))))
    return time.perf_counter() - started


def all_specs(problem: GemmProblem, space: Space, arch: str) -> tuple[str, tuple[KernelSpec, ...]]:
    """Text of the generated kernels, and the distinct specs of all configs that pruning keeps."""
    configs = prune(space, problem, gpu_for_arch(arch)).kept
    module = generate(problem, configs, arch)
    op = get_op(problem.op)
    specs = dict.fromkeys(
        spec for config in configs for spec in kernel_specs(problem, config, op, module.source_sha256, module.arch)
    )
    return module.kernels_text, tuple(specs)


def rate(kernels: int, jobs: int, folder: Path) -> None:
    """Compiled kernels per second: the farm with `jobs` workers, one bare loop, and `jobs` bare loops at once."""
    chunks: list[Chunk] = []
    warm_ups: list[Chunk] = []
    for arch, problem in RATE_PROBLEMS:
        text, specs = all_specs(problem, load_space(None, arch, problem.op), arch)
        path = folder / f"{arch}.py"
        path.write_text(text)
        chosen = random.Random(0).sample(specs, kernels + 1)
        warm_ups.append(Chunk(arch, str(path), tuple(chosen[:1])))
        chunks += Chunk(arch, str(path), tuple(chosen[1:])).split(ROUNDS)
    chunks = [chunk for first in range(ROUNDS) for chunk in chunks[first::ROUNDS]]  # the architectures take turns
    cache = BinaryCache(folder / "rate")
    found = versions()["triton"]
    farms = {arch: Farm(cache, triton_target_of(arch), found, jobs=jobs, timeout_s=60) for arch, _ in RATE_PROBLEMS}

    def farm_time(chunk: Chunk) -> float:
        started = time.perf_counter()
        for _ in farms[chunk.arch].compile(chunk.module_path, chunk.specs):
            pass
        return time.perf_counter() - started

    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as alone, ProcessPoolExecutor(jobs, spawn) as crowd:
        for warm_up in warm_ups:
            alone.submit(bare_loop, warm_up).result()
            list(crowd.map(bare_loop, [warm_up] * 4 * jobs))
        seconds: dict[str, list[float]] = {"bare": [], "farm": [], "crowd": []}
        for number, chunk in enumerate(chunks):
            for name in _rotated(list(seconds), number):
                if name == "bare":
                    seconds[name].append(alone.submit(bare_loop, chunk).result())
                else:
                    seconds[name].append(farm_time(chunk) if name == "farm" else bare_crowd(crowd, chunk))
    kernels = sum(len(chunk.specs) for chunk in chunks)
    refused = sum(farm.counts.failed for farm in farms.values())
    archs = " and ".join(f"{arch} ({problem.size})" for arch, problem in RATE_PROBLEMS)
    print(f"## Rate: {kernels} kernels, half each for {archs}, {jobs} workers\n")
    print(f"| contender | kernels/s | of {jobs} x the bare loop | turn by turn |\n|---|---|---|---|")
    labels = {
        "bare": "bare triton.compile loop, one process",
        "farm": f"the farm from cold, start-up included ({refused} kernels refused)",
        "crowd": f"{jobs} bare processes at once: what the machine gives",
    }
    for name, label in labels.items():
        turns = [bare / jobs / own for bare, own in zip(seconds["bare"], seconds[name], strict=True)]
        whole = sum(seconds["bare"]) / jobs / sum(seconds[name])
        shares = "| | |" if name == "bare" else f"| {whole:.3f} | {' '.join(f'{turn:.3f}' for turn in turns)} |"
        print(f"| {label} | {kernels / sum(seconds[name]):.2f} {shares}")
    print()


def _rotated(items: list[Item], by: int) -> list[Item]:
    by %= len(items)
    return items[by:] + items[:by]


def fill_cache(cache: BinaryCache, problem: GemmProblem, space: Space, arch: str) -> int:
    """Store a stand-in for every binary of the problem; returns how many."""
    target, found = triton_target_of(arch), versions()["triton"]
    extension = "hsaco" if target.backend == "hip" else "cubin"
    _, specs = all_specs(problem, space, arch)
    for number, spec in enumerate(specs):
        files = {f"kernel.{extension}": STAND_IN, "kernel.json": b"{}"}
        resources = replace(STAND_IN_RESOURCES, code_sha256=str(number))
        cache.put(spec.key(target, found), spec, f"stand_in_{number}", resources, files)
    return len(specs)


def rerun(jobs: int, folder: Path) -> None:
    """Configs per second from the space to candidates when everything is in the cache."""
    print("## A second run over a size: everything is in the cache\n")
    print("| size | space | pruned to | binaries | compiled | seconds | configs/s |\n|---|---|---|---|---|---|---|")
    for arch, problem in RERUN_PROBLEMS:
        gpu, space = gpu_for_arch(arch), load_space(None, arch, problem.op)
        cache = BinaryCache(folder / "rerun")
        binaries = fill_cache(cache, problem, space, arch)
        farm = Farm(cache, triton_target_of(arch), versions()["triton"], jobs=jobs, timeout_s=60)
        modules = str(folder / "modules")
        build_environment = BuildEnvironment(
            farm, gpu, arch, Budget(), init_type="randn", module_dir=modules, keep_modules=False
        )
        kernel_specs_cold()
        started = time.perf_counter()
        kept = prune(space, problem, gpu).kept
        with build_environment.open(problem, kept, 0) as builder:
            candidates = sum(1 for _ in builder.candidates(kept))
        took = time.perf_counter() - started
        assert candidates == len(kept)
        print(
            f"| {problem.size} {arch} | {space.size:,} | {len(kept):,} | {binaries:,} | {farm.counts.compiled} | "
            f"{took:.2f} | {len(kept) / took:,.0f} |"
        )
    print()


def kernel_specs_cold() -> None:
    """Forget the specs that filling the cache computed: a second run is another process."""
    from genkern.kernels import families

    for value in vars(families).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def memory(folder: Path) -> None:
    """Peak memory of the command itself when every config of the AMD space is kept, compiled (cached) and predicted."""
    default = load_space(None, MEMORY_ARCH, MEMORY_PROBLEM.op)
    shipped = Path(sys.modules[load_space.__module__].__file__ or "").parent / "spaces" / f"{default.name}.yaml"
    head, _, _ = shipped.read_text(encoding="utf-8").partition("\nrules:")
    path = folder / "without_rules.yaml"
    path.write_text(f"{head}\nrules: []\n", encoding="utf-8")
    space = load_space(str(path), MEMORY_ARCH, MEMORY_PROBLEM.op)
    binaries = fill_cache(BinaryCache(folder / "cache" / "binaries"), MEMORY_PROBLEM, space, MEMORY_ARCH)
    sizes = [f"-{name}={getattr(MEMORY_PROBLEM, name.upper())}" for name in "mnk"]
    argv = [*sizes, "--arch", MEMORY_ARCH, "--profiler", "predict", "--space", str(path), "-v"]
    argv += ["--cache_dir", str(folder / "cache"), "-o", str(folder / "memory.yaml"), "-o2", str(folder / "memory.csv")]
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.farm.rate", "--driver", *argv],
        capture_output=True,
        text=True,
        check=False,
        env=_environment(),
    )
    took = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"genkern {' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
    lines = done.stdout.splitlines()
    outcomes = next(line for line in lines if "; prune " in line)
    print(f"## Peak memory of the driver: {space.size:,} configs kept, {binaries:,} binaries\n")
    print(f"{lines[-1]}, {took:.0f} s with the journal and the candidates' CSV ({outcomes.strip()})\n")


def driver(argv: Sequence[str]) -> int:
    """The command, with its peak memory printed at the end."""
    from genkern.__main__ import main as command

    status = command(argv)
    print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB resident")
    return status


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="genkern-bench-") as name:
        yield Path(name)


def main() -> int:
    if sys.argv[1:2] == ["--driver"]:
        return driver(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", choices=["rate", "rerun", "memory", []], help="default: all")
    parser.add_argument("--kernels", type=int, default=240, help="kernels of the rate, for each architecture")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="workers of the farm")
    arguments = parser.parse_args()
    wanted = arguments.figures or ["rate", "rerun", "memory"]
    cores, found = len(os.sched_getaffinity(0)), versions()
    print(f"{cores} cores, Python {platform.python_version()}, Triton {found['triton']}, genkern {found['genkern']}\n")
    with _folder() as folder:
        if "rate" in wanted:
            rate(arguments.kernels, arguments.jobs, folder)
        if "rerun" in wanted:
            rerun(arguments.jobs, folder)
        if "memory" in wanted:
            memory(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
