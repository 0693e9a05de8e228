"""Checks whether a kernel can launch on a GPU, and how many of its workgroups fit on one compute unit."""

from __future__ import annotations

from genkern.gemm.gpus import Gpu
from genkern.gemm.records import Resources

# Scalar registers that every wave may use without lowering the occupancy on GPUs whose waves share a file of scalar
# registers, and the step in which further ones are allocated.
_SCALAR_REGISTERS_OF_ALL, _SCALAR_GRANULE = 100, 16


def fits(resources: Resources, num_warps: int, gpu: Gpu) -> str:
    """Return "" if one workgroup can launch on `gpu`, else the reason in one line.

    A resource that the binary does not state (None) counts as zero.
    """
    shared = resources.shared_bytes or 0
    if shared > gpu.shared_bytes_per_block:
        kind = "LDS" if gpu.vendor == "amd" else "shared memory"
        return f"{kind} of {shared} bytes is over the {gpu.shared_bytes_per_block} of {gpu.arch}"
    threads = num_warps * gpu.warp_size
    if threads > gpu.threads_per_block_max:
        return f"{num_warps} warps are {threads} threads, over the {gpu.threads_per_block_max} of {gpu.arch}"
    registers = resources.registers or 0
    if registers > gpu.registers_per_thread_max:
        return f"{registers} registers per thread are over the {gpu.registers_per_thread_max} of {gpu.arch}"
    if _warps_by_registers(resources, gpu) < num_warps:
        return (
            f"{registers} registers x {threads} threads are over the {gpu.registers_per_unit} registers "
            f"of one unit of {gpu.arch}"
        )
    return ""


def occupancy(resources: Resources, num_warps: int, gpu: Gpu) -> int:
    """Return the number of workgroups that fit on one compute unit (SM) at once; 0 if not even one does.

    AMD: the smallest of the waves per SIMD (LLVM's AMDGPUBaseInfo), the LDS, and 16 workgroups, which is the number of
        barriers of a CU; a workgroup of one wave needs no barrier. NVIDIA: the rules of
        cuOccupancyMaxActiveBlocksPerMultiprocessor: registers are allocated per warp in steps of 256 in one of four
        partitions, 1 KiB of shared memory is reserved per block, and threads and blocks are limited.
    """
    if fits(resources, num_warps, gpu):
        return 0
    limits = [_warps_by_registers(resources, gpu) // num_warps]
    shared = _round_up((resources.shared_bytes or 0) + gpu.shared_reserved_bytes, gpu.shared_granule_bytes)
    if shared:
        limits.append(gpu.shared_bytes_per_unit // shared)
    if gpu.vendor == "nvidia" or num_warps > 1:
        limits.append(gpu.blocks_per_unit_max)
    return min(limits)


def _warps_by_registers(resources: Resources, gpu: Gpu) -> int:
    """Return the number of warps (waves) that the register file and the wave slots of one unit hold.

    Both vendors divide the file between the SIMDs (partitions) of a unit, and a warp lives in one of them.
    """
    per_simd = gpu.threads_per_unit_max // gpu.warp_size // gpu.simds_per_unit
    registers = resources.registers or 0
    if registers:
        per_warp = _round_up(registers, gpu.register_granule) * gpu.warp_size
        per_simd = min(per_simd, gpu.registers_per_unit // gpu.simds_per_unit // per_warp)
    scalar = resources.scalar_registers or 0
    if gpu.has.scalar_registers_per_simd and scalar > _SCALAR_REGISTERS_OF_ALL:
        per_simd = min(per_simd, gpu.has.scalar_registers_per_simd // _round_up(scalar, _SCALAR_GRANULE))
    return per_simd * gpu.simds_per_unit


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
