"""How A and B are loaded, for the cost model: bytes per lane and load, and whether the loop is pipelined.

Kernels that load through pointers know the largest power of two that divides the length of rows; a lane loads that many
elements at a time, up to 16 bytes. The rules were read from Triton 3.7's binaries (LDS of gfx942 at 64x64x64 bf16 with
three stages: 32 KiB for K = 4096, 4104, 4100 and 4098, 8 KiB for 4097).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from genkern.compile.occupancy import occupancy
from genkern.gemm.config import Config
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.catalogue import traits_of
from genkern.kernels.contract.argument import alignment_of
from genkern.ops.op import element_bytes, get_op

_WIDEST_BYTES = 16


def lane_bytes(problem: GemmProblem, config: Config) -> tuple[int, int]:
    """Return the bytes that a lane loads at a time, of A and of B."""
    if traits_of(config).uses_tma:
        return _WIDEST_BYTES, _WIDEST_BYTES
    return _pointer_bytes(problem)


# Cached, since it is called for each of thousands of configs of a problem.
@lru_cache(maxsize=64)
def _pointer_bytes(problem: GemmProblem) -> tuple[int, int]:
    a, b, *_ = get_op(problem.op).operands(problem)
    of_a, of_b = (
        min(DTYPES[each.dtype].size_bytes * alignment_of(each.storage_shape[-1]), _WIDEST_BYTES) for each in (a, b)
    )
    return of_a, of_b


def is_pipelined(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
    """Return True if loads of later steps are under way while a step is multiplied."""
    if config.num_stages <= 1:
        return False
    return min(lane_bytes(problem, config)) >= gpu.has.pipelined_bytes


def resident_workgroups(problem: GemmProblem, config: Config, resources: Resources, gpu: Gpu) -> int:
    """Return the number of workgroups that run on one unit at a time; 0 if not even one can.

    A loop that Triton does not pipeline keeps fewer tiles in LDS. The further workgroups for which that leaves room are
    not counted: in the model they would hide more latency than the pipeline, although narrow loads fill the unit's
    queues.
    """
    per_unit = occupancy(resources, config.num_warps, gpu)
    if config.num_stages <= 1 or is_pipelined(problem, config, gpu) or per_unit <= 1:
        return per_unit
    size_a, size_b = element_bytes(problem)
    of_k = config.BLOCK_SIZE_M * size_a + config.BLOCK_SIZE_N * size_b
    tiles_bytes = int(of_k * config.BLOCK_SIZE_K) * (config.num_stages - 1)
    pipelined = replace(resources, shared_bytes=max(resources.shared_bytes or 0, tiles_bytes))
    # Without a binary no config has known resources: `per_unit` then stays as it is for all of them.
    return per_unit if resources.shared_bytes is None else max(1, occupancy(pipelined, config.num_warps, gpu))


def load_clocks(bytes_loaded: float, lane: int, l2_bytes_per_clock: float, gpu: Gpu) -> float:
    """Return the clocks in which a unit loads `bytes_loaded`, with `lane` bytes per lane and load."""
    return bytes_loaded / min(l2_bytes_per_clock, lane * gpu.has.lanes_per_clock)
