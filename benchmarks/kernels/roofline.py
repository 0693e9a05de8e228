"""Each tuned size against what bounds it: bytes over bandwidth, and operations over the matrix peak.

    python -m benchmarks.kernels.roofline RESULTS.yaml

by the data sheet's figures of the results' device; with --measure by a copy and a large product timed on this GPU, with
--bounds 4.258 785 by what --measure said before, in TB/s and TFLOPS.

The third figure is traffic between L2 and the SMs: each tile of C brings in its rows of A and columns of B, so small
tiles need more of it. The results say which tile was chosen, not which would have been possible.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common.figures import DataFile, table
from benchmarks.common.workbench import errors_end
from genkern.files.file_kind import read_results
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu, gpu_for_device
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import k_shares
from genkern.ops.op import bytes_moved
from genkern.result.result import Result

COPY_BYTES = 2**31
PEAK_SIZE = 8192
WARM_CALLS, TIMED_CALLS = 20, 30


@dataclass(frozen=True)
class Machine:
    """What the bounds are made of: 10^12 bytes/s, 10^12 operations/s, units, and where the figures come from."""

    memory_tb_per_s: float
    peak_tflops: float
    compute_units: int
    source: str


@dataclass(frozen=True)
class Bounds:
    """Least times of one size in microseconds."""

    memory_us: float
    compute_us: float

    @property
    def us(self) -> float:
        return max(self.memory_us, self.compute_us)

    @property
    def name(self) -> str:
        return "memory" if self.memory_us > self.compute_us else "compute"


def bounds(problem: GemmProblem, machine: Machine) -> Bounds:
    """Each operand moved once, each multiplication and addition done once."""
    return Bounds(
        bytes_moved(problem) / machine.memory_tb_per_s * 1e-6,
        problem.flops / machine.peak_tflops * 1e-6,
    )


def unit_bytes_per_us(problem: GemmProblem, config: Config, us: float, units: int) -> float:
    """Bytes of A and B that the busiest unit takes in each microsecond, when tiles are dealt out evenly."""
    size_a, size_b = DTYPES[problem.dtype_a].size_bytes, DTYPES[problem.dtype_b].size_bytes
    rows, columns = min(config.BLOCK_SIZE_M, problem.M), min(config.BLOCK_SIZE_N, problem.N)
    per_share = (rows * size_a + columns * size_b) * problem.K / k_shares(config)
    return math.ceil(shares(problem, config) / units) * per_share / us


def fill(problem: GemmProblem, config: Config, units: int) -> float:
    """Share of the units' turns that have a tile: 1 when the tiles fill every wave."""
    count = shares(problem, config)
    return count / (math.ceil(count / units) * units)


def shares(problem: GemmProblem, config: Config) -> int:
    """Tiles, or shares of them where programs share K."""
    tiles = math.ceil(problem.M / config.BLOCK_SIZE_M) * math.ceil(problem.N / config.BLOCK_SIZE_N)
    return tiles * k_shares(config)


def report(rows: Sequence[Result], machine: Machine) -> str:
    """Markdown: a line per size with a time, then the five furthest from their bound."""
    timed = sorted((r for r in rows if r.duration_us), key=lambda r: (r.problem.M, r.problem.N, r.problem.K))
    cells = []
    for row in timed:
        least, us = bounds(row.problem, machine), row.duration_us or 0.0
        traffic = unit_bytes_per_us(row.problem, row.config, us, machine.compute_units) / 1e3
        cells.append(
            (
                row.problem.size,
                f"{us:.2f}",
                f"{least.us:.2f}",
                least.name,
                f"{least.us / us:.2f}",
                f"{fill(row.problem, row.config, machine.compute_units):.2f}",
                f"{traffic:.0f}",
                f"{row.vendor_us / us:.3f}" if row.vendor_us else "-",
                row.config.name,
            )
        )
    worst = sorted(timed, key=lambda r: bounds(r.problem, machine).us / (r.duration_us or math.inf))[:5]
    head = f"{machine.memory_tb_per_s:.3f} TB/s, {machine.peak_tflops:.0f} TFLOPS ({machine.source})"
    columns = ("size", "us", "bound us", "by", "bound / us", "fill", "KB/us into an SM", "vs vendor", "config")
    far = ", ".join(
        f"{r.problem.size} ({bounds(r.problem, machine).us / (r.duration_us or math.inf):.2f})" for r in worst
    )
    return f"{head}\n\n{table(columns, cells)}\n\nFurthest from the bound: {far}."


def stated(gpu: Gpu, dtype: str) -> Machine:
    """The data sheet's figures."""
    return Machine(gpu.memory_tb_per_s, gpu.peak_tflops[dtype], gpu.compute_units, f"data sheet of {gpu.name}")


def measured(dtype: str) -> Machine:
    """This GPU's: a copy of 2 GiB (read and written), and the vendor library's product of 8192 cubed."""
    import torch

    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    copy_us = _median_us(torch, lambda: target.copy_(source))
    a = torch.randn(PEAK_SIZE, PEAK_SIZE, device="cuda").to(getattr(torch, DTYPES[dtype].torch))
    mm_us = _median_us(torch, lambda: torch.mm(a, a.T))
    name = torch.cuda.get_device_name(0)
    return Machine(
        2 * COPY_BYTES / copy_us * 1e-6,
        2 * PEAK_SIZE**3 / mm_us * 1e-6,
        torch.cuda.get_device_properties(0).multi_processor_count,
        f"a copy of 2 GiB and torch.mm of {PEAK_SIZE} cubed, medians of {TIMED_CALLS} on {name}",
    )


def _median_us(torch: Any, call: Callable[[], object]) -> float:
    for _ in range(WARM_CALLS):
        call()
    times_us = []
    for _ in range(TIMED_CALLS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times_us.append(start.elapsed_time(end) * 1e3)
    return median(times_us)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="results file of genkern, YAML; all its sizes of one type and device")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--measure", action="store_true", help="measure this GPU's bandwidth and peak")
    source.add_argument(
        "--bounds", nargs=2, type=float, metavar=("TB/S", "TFLOPS"), help="bandwidth and peak measured at another time"
    )
    parser.add_argument("-o", "--output", help="bandwidth and peak as JSON lines")
    arguments = parser.parse_args(argv)
    with errors_end():
        rows = read_results(arguments.results)
        dtype = rows[0].problem.dtype_a
        if arguments.measure:
            machine = measured(dtype)
        else:
            machine = stated(gpu_for_device(rows[0].device or "", rows[0].arch or ""), dtype)
        if arguments.bounds:
            memory_tb_per_s, peak_tflops = arguments.bounds
            if not all(0 < bound < math.inf for bound in arguments.bounds):
                parser.error("--bounds: TB/s and TFLOPS are positive numbers")
            machine = Machine(memory_tb_per_s, peak_tflops, machine.compute_units, "given")
    DataFile(arguments.output).add(dict(vars(machine)))
    print(report(rows, machine))


if __name__ == "__main__":
    main(sys.argv[1:])
