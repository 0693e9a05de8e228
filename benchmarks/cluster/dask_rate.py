"""What Dask costs the farm: kernels a second beside loky's on the same cores, a unit that does nothing, a killed node.

    python -m benchmarks.cluster.dask_rate [rate] [units] [kill] [--kernels 24] [--rounds 4] [--units 10000]

    rate    the same kernels by the farm's own processes and by `--cluster local:N`, in turns, each time into an empty
            cache; both have compiled before. dask_over_loky is the median of the ratios of the rounds, by seconds of
            processors, all of which a farm uses: they do not change where others use them too, as the clock does
    units   10,000 units that find their kernel in the node's cache, eight to a task and alone, as a farm hands them out
            that has many more than the nodes do at a time, and few: what a unit costs this process, in which client
            and scheduler are, and so how many a second it could do at most (dask_unit_ms: eight); and bytes
    kill    kernels on four nodes, of which one is killed after a quarter of them, beside none, in turns:
            cluster_kill_overhead is the median of the ratios of the rounds

Needs the extra `cluster`, no GPU and no PyTorch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.common.workbench import say
from benchmarks.farm.rate import all_specs, triton_target_of
from genkern.cli.target import versions
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import TOGETHER, Farm, Pool
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.dask_pool import DaskPool
from genkern.compile.remote.unit import task_of
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary
from genkern.kernels.kernel import KernelSpec
from genkern.space.space import load_space

ARCH, PROBLEM = "sm_90", GemmProblem(4096, 6144, 4096)
# So many units are with the scheduler at a time: more than any number of nodes needs, and less than all.
_AT_A_TIME = 256


class Bench:
    """Kernels of one size, and farms that compile them."""

    def __init__(self, folder: Path, kernels: int) -> None:
        text, specs = all_specs(PROBLEM, load_space(None, ARCH, PROBLEM.op), ARCH)
        self.module = folder / "kernels.py"
        self.module.write_text(text)
        # By the number: those of a size differ twentyfold in what they take.
        self.specs = random.Random(0).sample(specs, kernels)
        self.target, self.triton = triton_target_of(ARCH), versions()["triton"]
        self.folder = folder
        self._caches = 0

    def empty_cache(self) -> BinaryCache:
        self._caches += 1
        return BinaryCache(self.folder / f"cache_{self._caches}" / "binaries")

    @contextlib.contextmanager
    def pool(self, nodes: int, cache: BinaryCache) -> Iterator[DaskPool]:
        """A cluster of so many processes here."""
        made_for = MadeFor.here(self.target, self.triton)
        pool = DaskPool(f"local:{nodes}", cache, made_for, lambda line: None)
        try:
            pool.connect()
            yield pool
        finally:
            pool.end()

    def farm(self, cache: BinaryCache, jobs: int, pool: Pool | None = None) -> Farm:
        return Farm(cache, self.target, self.triton, jobs=jobs, timeout_s=120, pool=pool)

    def seconds(self, farm: Farm, specs: list[KernelSpec], kill: list[int] | None = None) -> float:
        """Until the farm has compiled these; after a quarter of them the processes in `kill` are killed."""
        started, done = time.perf_counter(), 0
        for result in farm.compile(str(self.module), specs):
            done += isinstance(result, Binary)
            if kill and done == len(specs) // 4:
                os.kill(kill.pop(), signal.SIGKILL)
        return time.perf_counter() - started


def rate(builder: Bench, jobs: int, rounds: int) -> None:
    by_wall, by_processor, warm = [], [], [warm_spec(spec) for spec in builder.specs[:jobs]]
    with builder.pool(jobs, first := builder.empty_cache()) as pool:
        builder.seconds(builder.farm(first, jobs, pool), warm)
        builder.seconds(builder.farm(builder.empty_cache(), jobs), warm)
        for number in range(rounds):
            took, used = {}, {}
            for name in ("dask", "loky") if number % 2 else ("loky", "dask"):
                # As on nodes that do not see the folder: what they make comes back as bytes.
                pool._cache, pool._shared = builder.empty_cache(), None
                before_s = processor_s()
                farm = builder.farm(pool._cache, jobs, pool if name == "dask" else None)
                took[name] = builder.seconds(farm, builder.specs)
                used[name] = processor_s() - before_s
                remove_entries(first)
            by_wall.append(took["loky"] / took["dask"])
            by_processor.append(used["loky"] / used["dask"])
            seconds = "; ".join(f"{name} {took[name]:.1f} s, {used[name]:.2f} s of processors" for name in took)
            say(f"{seconds}; {load()}")
    print(f"by the clock: {median(by_wall):.3f} ({spread(by_wall)})")
    found = f"{len(builder.specs)} kernels, {jobs} processes; {spread(by_processor)}"
    print(f"dask_over_loky: {median(by_processor):.3f} ({found})")


def processor_s() -> float:
    """Seconds of processors of this process and all that it has started, which stay from round to round."""
    # Dask needs it.
    import psutil

    own = psutil.Process()
    total = 0.0
    for process in [own, *own.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def remove_entries(cache: BinaryCache) -> None:
    """What the nodes have kept, so that the next round is as cold as the other contender's."""
    for folder in cache.folder.glob("??"):
        shutil.rmtree(folder)


def units(builder: Bench, count: int, nodes: int) -> None:
    cache = builder.empty_cache()
    with builder.pool(nodes, cache) as pool:
        farm = builder.farm(cache, nodes, pool)
        builder.seconds(farm, builder.specs[:1])
        spec = builder.specs[0]
        job = farm.job(farm.key(spec), str(builder.module), spec)
        for together, what, shared in (
            (TOGETHER, "names come back", pool._shared),
            (TOGETHER, "bytes come back", None),
            (1, "names come back", pool._shared),
            (1, "bytes come back", None),
        ):
            pool._shared = shared
            sent, futures = len(task_of([pool._unit(job)] * together)) / together, []
            started, started_cpu = time.perf_counter(), time.process_time()
            for number in range(0, count, together):
                futures += pool.begin([job] * together)
                if number >= _AT_A_TIME:
                    futures[number - _AT_A_TIME].result()
            assert all(isinstance(future.result(), Binary) for future in futures)
            took_s, cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
            back = sum(map(len, cache.files(job.key).values())) if shared is None else len(job.key)
            each = f"{1000 * took_s / count:.2f} ms a unit, {1000 * cpu_s / count:.2f} ms of processor time here"
            print(f"{count} units that find their kernel, {together} a task, {what}: {each}, {load()}", flush=True)
            print(f"bytes of a unit there and back: {sent:.0f} {back}")


def kill(builder: Bench, rounds: int) -> None:
    ratios = []
    for number in range(rounds):
        took = {}
        for name in ("whole", "killed") if number % 2 else ("killed", "whole"):
            cache = builder.empty_cache()
            with builder.pool(4, cache) as pool:
                builder.seconds(builder.farm(cache, 4, pool), [warm_spec(spec) for spec in builder.specs[:4]])
                pids = [*pool.connect().client.run(os.getpid).values()]
                took[name] = builder.seconds(
                    builder.farm(cache, 4, pool), builder.specs, pids[:1] if name == "killed" else None
                )
        ratios.append(took["killed"] / took["whole"])
        say(f"whole {took['whole']:.1f} s, one of four killed {took['killed']:.1f} s, {load()}")
    print(f"cluster_kill_overhead: {median(ratios):.2f} ({len(builder.specs)} kernels, 4 nodes; {spread(ratios)})")


def warm_spec(spec: KernelSpec) -> KernelSpec:
    """The same with another key: a process that has compiled it has imported Triton."""
    return replace(spec, options=(*(pair for pair in spec.options if pair[0] != "num_warps"), ("num_warps", 2)))


def load() -> str:
    return f"load {os.getloadavg()[0]:.1f}"


def spread(ratios: list[float]) -> str:
    return f"rounds from {min(ratios):.3f} to {max(ratios):.3f}, {load()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=("rate", "units", "kill", []), default=[])
    parser.add_argument("--kernels", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    what = options.what or ["rate", "units", "kill"]
    with tempfile.TemporaryDirectory(prefix="genkern-dask-") as folder:
        builder = Bench(Path(folder), options.kernels)
        if "rate" in what:
            rate(builder, options.jobs, options.rounds)
        if "units" in what:
            units(builder, options.units, options.jobs)
        if "kill" in what:
            kill(builder, options.rounds)


if __name__ == "__main__":
    main()
