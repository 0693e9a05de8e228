"""Tests of genkern.compile.occupancy: the published occupancy rules, and what a CUDA driver says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machines import known_gpus

from genkern.compile.occupancy import fits, occupancy
from genkern.gemm.gpus import Gpu, gpu_for_arch
from genkern.gemm.records import Resources

resources_of = st.builds(
    Resources,
    registers=st.none() | st.integers(1, 600),
    scalar_registers=st.none() | st.integers(1, 112),
    shared_bytes=st.none() | st.integers(0, 250_000),
)
warps = st.sampled_from([1, 2, 4, 8, 16, 32])
gpus = st.sampled_from(known_gpus())


@pytest.mark.parametrize(
    ("registers", "waves"),
    [(24, 8), (64, 8), (65, 7), (72, 7), (80, 6), (96, 5), (128, 4), (129, 3), (168, 3), (256, 2), (257, 1), (512, 1)],
)
@pytest.mark.parametrize("arch", ["gfx90a", "gfx942", "gfx950"])
def test_cdna_waves_per_simd(arch: str, registers: int, waves: int) -> None:
    """Waves per SIMD follow LLVM's steps for 512 VGPRs in granules of 8."""
    assert waves * 4 == occupancy(Resources(registers=registers), 1, gpu_for_arch(arch))


@pytest.mark.parametrize(("registers", "waves"), [(96, 16), (97, 12), (120, 12), (144, 10), (256, 5)])
def test_rdna_waves_per_simd(registers: int, waves: int) -> None:
    """Waves per SIMD on gfx1201 follow from 1536 VGPRs in granules of 24, with 16 slots."""
    assert waves * 2 == occupancy(Resources(registers=registers), 1, gpu_for_arch("gfx1201"))


def test_scalar_registers_take_the_eighth_wave() -> None:
    """More than 100 SGPRs leave 7 waves per SIMD on gfx9."""
    seven = occupancy(Resources(registers=32, scalar_registers=102), 1, gpu_for_arch("gfx942"))
    eight = occupancy(Resources(registers=32, scalar_registers=100), 1, gpu_for_arch("gfx942"))
    assert (seven, eight) == (28, 32)


@pytest.mark.parametrize(
    ("arch", "shared_bytes", "blocks"),
    [("gfx942", 65536, 1), ("gfx942", 32768, 2), ("gfx942", 21504, 3), ("gfx942", 21505, 2), ("gfx950", 65536, 2)],
)
def test_lds_bounds_workgroups(arch: str, shared_bytes: int, blocks: int) -> None:
    """LDS is handed out in granules from 64 KiB (gfx942) or 160 KiB (gfx950) per compute unit."""
    assert blocks == occupancy(Resources(registers=32, shared_bytes=shared_bytes), 4, gpu_for_arch(arch))


def test_a_compute_unit_has_16_barriers() -> None:
    """At most 16 workgroups of more than one wave run on a CDNA compute unit; those of one wave need no barrier."""
    small = Resources(registers=16)
    assert tuple(occupancy(small, count, gpu_for_arch("gfx942")) for count in (1, 2, 4)) == (32, 16, 8)


# (registers per thread, shared bytes, warps) -> blocks per SM, as cuOccupancyMaxActiveBlocksPerMultiprocessor says of
# real Triton kernels on an H200. The rules agreed with it on all 209 distinct cases that were tried.
H200 = {
    (58, 18432, 4): 8,
    (126, 122880, 4): 1,
    (118, 36864, 4): 4,
    (48, 24576, 4): 9,
    (74, 98304, 4): 2,
    (128, 55296, 4): 4,
    (98, 221184, 8): 1,
    (46, 9216, 8): 5,
    (37, 8192, 8): 6,
    (58, 61440, 8): 3,
    (118, 55296, 4): 4,
    (56, 98304, 8): 2,
    (255, 196608, 4): 1,
}


@pytest.mark.parametrize(("case", "blocks"), H200.items())
def test_occupancy_is_the_drivers(case: tuple[int, int, int], blocks: int) -> None:
    """On sm_90 the result is what the CUDA driver computes."""
    registers, shared_bytes, num_warps = case
    found = occupancy(Resources(registers=registers, shared_bytes=shared_bytes), num_warps, gpu_for_arch("sm_90"))
    assert blocks == found


@pytest.mark.parametrize(
    ("arch", "num_warps", "resources", "reason"),
    [
        ("gfx942", 4, Resources(shared_bytes=65537), "LDS of 65537 bytes is over the 65536 of gfx942"),
        ("gfx950", 4, Resources(shared_bytes=163841), "over the 163840 of gfx950"),
        ("sm_90", 4, Resources(shared_bytes=232449), "shared memory of 232449 bytes is over the 232448"),
        ("sm_90", 64, Resources(), "64 warps are 2048 threads, over the 1024"),
        ("gfx942", 32, Resources(), "32 warps are 2048 threads, over the 1024"),
        ("sm_90", 16, Resources(registers=255), "255 registers x 512 threads are over the 65536 registers"),
        ("gfx942", 8, Resources(registers=512), "512 registers x 512 threads are over the 131072 registers"),
        ("sm_90", 4, Resources(registers=256), "256 registers per thread are over the 255"),
    ],
)
def test_what_cannot_launch_is_named(arch: str, num_warps: int, resources: Resources, reason: str) -> None:
    """Each limit that a kernel exceeds has its own reason, and no workgroup is resident."""
    gpu = gpu_for_arch(arch)
    assert reason in fits(resources, num_warps, gpu)
    assert occupancy(resources, num_warps, gpu) == 0


@pytest.mark.parametrize(
    ("arch", "num_warps", "resources"),
    [
        ("gfx942", 4, Resources(registers=512, shared_bytes=65536)),
        ("gfx942", 16, Resources(registers=128, shared_bytes=0)),
        ("sm_90", 8, Resources(registers=255, shared_bytes=232448)),
        ("sm_90", 32, Resources(registers=64)),
        ("sm_90", 4, Resources()),
    ],
)
def test_the_limit_itself_fits(arch: str, num_warps: int, resources: Resources) -> None:
    """A kernel that needs exactly what there is launches, once per unit at least; unknown needs are no obstacle."""
    gpu = gpu_for_arch(arch)
    assert fits(resources, num_warps, gpu) == ""
    assert occupancy(resources, num_warps, gpu) >= 1


@given(resources=resources_of, num_warps=warps, gpu=gpus)
def test_fits_and_occupancy_agree(resources: Resources, num_warps: int, gpu: Gpu) -> None:
    """A kernel fits exactly when at least one workgroup is resident, within the wave slots; reasons are one line."""
    reason = fits(resources, num_warps, gpu)
    blocks = occupancy(resources, num_warps, gpu)
    assert (reason == "") == (blocks >= 1)
    assert "\n" not in reason
    assert blocks * num_warps * gpu.warp_size <= gpu.threads_per_unit_max
    assert blocks * (resources.shared_bytes or 0) <= gpu.shared_bytes_per_unit


@given(resources=resources_of, num_warps=warps, gpu=gpus, more=st.integers(1, 100))
def test_needing_more_never_raises_occupancy(resources: Resources, num_warps: int, gpu: Gpu, more: int) -> None:
    """Occupancy does not grow with registers or with shared memory."""
    heavier = Resources(
        registers=(resources.registers or 1) + more, shared_bytes=(resources.shared_bytes or 0) + 100 * more
    )
    lighter = Resources(registers=resources.registers or 1, shared_bytes=resources.shared_bytes)
    assert occupancy(heavier, num_warps, gpu) <= occupancy(lighter, num_warps, gpu)
