"""How long a lab takes for very large searches: a simulation from measured times of units and of Dask's own work.

    python -m benchmarks.cluster.simulation --unit_ms MS [--check_rate UNITS_A_SECOND] [--entry_bytes N]

Two searches: all 132,000 configs of the AMD space (amd.yaml) for 500 sizes on 3 architectures, and `guided` for 5,000
sizes on one. A node has 16 cores that compile and one GPU, and the architectures have a third of the GPUs each. What is
measured and what is assumed:

    compile    seconds of a kernel, drawn from those of the recorded tables (16 cores of an H200's host at work); AMD's
               are taken to be alike
    measure    milliseconds of a config, the mean of those tables, where most configs are a launch or two
    binaries   configs that share one, counted in amd.yaml; binaries that sizes share, as in the tables
    guided     48 kernels and 2.3 s of the GPU for a size (results/figures.yaml: guided_s_per_size)
    unit_ms    processor time of the process with client and scheduler for a unit, and bytes of a unit there and back:
               benchmarks.cluster.dask_rate units

The scheduler hands out units eight at a time, as a farm with many more than the cores does, and each core takes its
next eight when it has done the last. The first 200,000 units of a search are simulated so; the rest goes at their rate.
`--check_rate` compares with a real run of units that do nothing. What is sent by `genkern sbatch` has no scheduler.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.figures import table
from genkern.compile.farm import TOGETHER
from genkern.recorded.load import load
from genkern.space.space import load_space

NODES = (1, 8, 64, 256)
CORES = 16
CONFIGS, SIZES, ARCHS = 132_000, 500, 3
GUIDED_SIZES, GUIDED_KERNELS, GUIDED_S = 5_000, 48, 2.3
_SIMULATED = 200_000
_RECORDED = Path(__file__).resolve().parents[2] / "results" / "recorded"


@dataclass(frozen=True)
class Measured:
    """Seconds of compiles, to draw from; mean seconds of a config's measurement; and what binaries have in common:
    how many configs have one, and how many of the binaries of all sizes are distinct.
    """

    compile_s: Sequence[float]
    measure_s: float
    configs_of_binary: float
    distinct: float


def measured() -> Measured:
    rows = load(str(_RECORDED))
    ours = rows[rows.compile_s.notna()]
    units = ours.drop_duplicates(["M", "N", "K", "unit"])
    (family,) = load_space("amd", "gfx942", "a16w16").families
    assert family.size == CONFIGS
    # GROUP_SIZE_M is an argument at run time, and so is SPLIT_K, but that a sum in parts is another kernel.
    shared = len(family.values("GROUP_SIZE_M")) * len(family.values("SPLIT_K")) / 2
    distinct = units.unit.nunique() / len(units)
    return Measured(tuple(units.compile_s), float(ours.took_ms.mean()) / 1000, shared, distinct)


def units_a_second(durations: Sequence[float], cores: int, unit_s: float) -> float:
    """How many units so many cores do in a second, given what each takes and what handing out one takes."""
    free = [0.0] * cores
    handed = end = 0.0
    for start in range(0, len(durations), TOGETHER):
        task = durations[start : start + TOGETHER]
        # With a task on its way the scheduler goes on to the next.
        handed += len(task) * unit_s
        ends = max(heapq.heappop(free), handed) + sum(task)
        heapq.heappush(free, ends)
        end = max(end, ends)
    return len(durations) / end


@dataclass(frozen=True)
class Search:
    """How much there is of a search: kernels to compile, and seconds of GPUs."""

    name: str
    kernels: float
    gpu_s: float


def searches(of: Measured) -> list[Search]:
    configs = CONFIGS * SIZES * ARCHS
    kernels = configs / of.configs_of_binary * of.distinct
    return [
        Search("exhaustive", kernels, configs * of.measure_s),
        Search("guided", GUIDED_SIZES * GUIDED_KERNELS * of.distinct, GUIDED_SIZES * GUIDED_S),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit_ms", type=float, required=True)
    parser.add_argument("--entry_bytes", type=float, default=23_000)
    parser.add_argument("--unit_bytes", type=float, default=1_630)
    parser.add_argument("--check_rate", type=float)
    options = parser.parse_args()
    of, unit_s = measured(), options.unit_ms / 1000
    draw = random.Random(0)
    durations = draw.choices(of.compile_s, k=_SIMULATED)
    mean_s = sum(of.compile_s) / len(of.compile_s)
    print(
        f"a compile {mean_s:.3f} s, a config {1000 * of.measure_s:.2f} ms, {of.configs_of_binary:.1f} configs a binary,"
    )
    print(f"{of.distinct:.3f} of the binaries of all sizes distinct, {options.unit_ms} ms of Dask a unit")
    if options.check_rate:
        simulated = units_a_second([0.0] * 10_000, 2, unit_s)
        print(f"units that do nothing: {simulated:.0f} a second, really {options.check_rate:.0f}")
    rates = {(nodes, cost): units_a_second(durations, CORES * nodes, cost) for nodes in NODES for cost in (unit_s, 0.0)}
    for search in searches(of):
        rows = []
        for nodes in NODES:
            dask_h, arrays_h = (search.kernels / rates[nodes, cost] / 3600 for cost in (unit_s, 0.0))
            gpu_h = search.gpu_s / nodes / 3600
            bound = "GPUs" if gpu_h > dask_h else "cores" if dask_h < 1.1 * arrays_h else "scheduler"
            hours = max(gpu_h, dask_h)
            rows.append([nodes, *(f"{h:.2f}" for h in (dask_h, arrays_h, gpu_h, hours)), bound])
        sent = search.kernels * (options.unit_bytes + options.entry_bytes) / 1e9
        print(f"\n{search.name}: {search.kernels:,.0f} kernels; {sent:,.0f} GB moved, or with a shared folder "
              f"{search.kernels * options.unit_bytes / 1e9:,.0f}\n")  # fmt: skip
        columns = ["nodes", "compile h by Dask", "by arrays", "measure h", "hours by Dask", "bound by"]
        print(table(columns, rows))
    most = 1 / unit_s
    print(f"\nDask hands out {most:,.0f} units a second: {most * mean_s / CORES:.1f} nodes of {CORES} cores are busy")


if __name__ == "__main__":
    main()
