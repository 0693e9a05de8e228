"""What bounds a product's time: its bytes, its operations, or the launch."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import k_shares
from genkern.ops.op import bytes_moved, columns_of_b, row_tiles
from genkern.search.cost_model.constants import constants_for

BYTES, MATRIX, LAUNCH = "bytes", "tensor cores", "launch"


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a product's time on a GPU, from the GPU's data sheet, in microseconds. Nothing here is measured.

    bytes_us: each input read once and the output written once at the memory's bandwidth
    matrix_us: all operations at the peak of the matrix units; None if the peak for this type is unknown
    launch_us: an empty kernel, as the cost model's constants have it
    """

    bytes_moved: int
    bytes_us: float
    flops: int
    matrix_us: float | None
    launch_us: float

    @property
    def by_name(self) -> dict[str, float]:
        found = {BYTES: self.bytes_us, LAUNCH: self.launch_us}
        return found if self.matrix_us is None else {**found, MATRIX: self.matrix_us}

    @property
    def name(self) -> str:
        """The largest bound."""
        return max(self.by_name, key=self.by_name.__getitem__)

    @property
    def us(self) -> float:
        return self.by_name[self.name]


def bounds_of(problem: GemmProblem, gpu: Gpu) -> Bounds:
    """Return the bounds of the problem's time on the GPU."""
    moved, peak = bytes_moved(problem), gpu.peak_tflops.get(DTYPES[problem.dtype_a].peak)
    return Bounds(
        moved,
        moved / (gpu.memory_tb_per_s * 1e6),
        problem.flops,
        problem.flops / (peak * 1e6) if peak else None,
        constants_for(gpu).kernel_us,
    )


def tiles_text(problem: GemmProblem, config: Config, gpu: Gpu) -> str:
    """Return the tiles of a config and the waves that they make: `352 tiles on 132 SMs: 2.67 waves`."""
    columns = -(-problem.N // config.BLOCK_SIZE_N) * columns_of_b(problem) * problem.batch
    tiles = row_tiles(problem, config.BLOCK_SIZE_M) * columns * k_shares(config)
    units = "SMs" if gpu.vendor == "nvidia" else "CUs"
    return f"{tiles:,} tiles on {gpu.compute_units} {units}: {tiles / gpu.compute_units:.2f} per unit"


def bounds_lines(bounds: Bounds, gpu: Gpu, time_us: float | None) -> list[str]:
    """Return the lines about the bounds, and how near a measured time comes to the largest."""
    lines = [
        f"{BYTES}: {bounds.bytes_moved / 1e6:.1f} MB at {gpu.memory_tb_per_s:g} TB/s take {bounds.bytes_us:.2f} us"
    ]
    if bounds.matrix_us is not None:
        tflops = bounds.flops / bounds.matrix_us * 1e-6
        lines.append(f"{MATRIX}: {bounds.flops / 1e9:.2f} GFLOP at {tflops:,.0f} TFLOPS take {bounds.matrix_us:.2f} us")
    lines.append(f"{LAUNCH}: an empty kernel takes {bounds.launch_us:.1f} us")
    end = f"; the measured time is {time_us / bounds.us:.2f} times that" if time_us else ""
    lines.append(f"by {bounds.name}: at least {bounds.us:.2f} us (data sheet){end}")
    return lines
