"""Kernel families: what the pipeline must know of each besides its template."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.gemm.config import Config


@dataclass(frozen=True)
class Family:
    """Facts of one family.

    `uses_tma`: loads through descriptors (sm_90 and later). `splits_k`: takes SPLIT_K above 1.
    `runs_on_amd`: has an AMD form. `interpreted`: runs under Triton's interpreter (Gluon does not).
    `uses_dot`: multiplies by tl.dot or wgmma, so that blocks have 16 elements at least.
    `width_step`: the side of a tile that wgmma's rows do not go along may be any multiple of this, not only a power of
    two (0: it may not). That is BLOCK_SIZE_N, or with swapped operands BLOCK_SIZE_M.
    `helper_warps`: warps that it runs beyond num_warps.
    `places_loads`: takes xcd_remap and cache_modifier.
    `has_semaphore`: one program of a tile adds up its splits, in a fixed order, in the same kernel.
    `deterministic`: two runs agree to the bit, whatever the type; see determinism.py for those that are not.
    `swaps_operands`: computes C transposed, so that N takes the long side of the matrix instruction.
    `split_apart`: has a kernel of its own for SPLIT_K above 1.
    `cluster`: programs that make a tile together, each over a share of K (sm_90: a cluster's blocks).
    `least_block_m` to `most_block_m`: its BLOCK_SIZE_M. `most_block_k`: its largest BLOCK_SIZE_K.
    `kernels_before`: kernels that it launches before its main one.
    """

    name: str
    uses_tma: bool = False
    splits_k: bool = False
    runs_on_amd: bool = False
    interpreted: bool = True
    uses_dot: bool = True
    width_step: int = 0
    helper_warps: int = 0
    places_loads: bool = False
    has_semaphore: bool = False
    deterministic: bool = True
    swaps_operands: bool = False
    split_apart: bool = False
    cluster: int = 1
    least_block_m: int = 16
    most_block_m: int = 1024
    most_block_k: int = 1024
    kernels_before: int = 0


FAMILIES = {
    family.name: family
    for family in (
        Family("tiled", splits_k=True, split_apart=True, runs_on_amd=True, places_loads=True),
        Family("tiled_semaphore", splits_k=True, runs_on_amd=True, has_semaphore=True),
        Family("stream_k", runs_on_amd=True),
        Family("tiled_atomic", splits_k=True, runs_on_amd=True, deterministic=False, kernels_before=1),
        Family("gemv", runs_on_amd=True, uses_dot=False, least_block_m=1, most_block_k=8192),
        Family(
            "skinny",
            splits_k=True,
            runs_on_amd=True,
            uses_dot=False,
            has_semaphore=True,
            least_block_m=1,
            most_block_m=16,
        ),
        Family(
            "tiled_swapped",
            splits_k=True,
            runs_on_amd=True,
            has_semaphore=True,
            swaps_operands=True,
            least_block_m=8,
        ),
        Family("tiled_tma", uses_tma=True, splits_k=True, has_semaphore=True),
        Family(
            "tiled_tma_swapped",
            uses_tma=True,
            splits_k=True,
            has_semaphore=True,
            swaps_operands=True,
            least_block_m=8,
        ),
        Family("persistent_tma", uses_tma=True),
        # Triton adds whole warpgroups: one warp of four loads, one multiplies.
        Family("persistent_tma_specialized", uses_tma=True, helper_warps=4),
        # Four: registers are dealt out to whole warpgroups, so the one loading warp costs a group.
        Family(
            "warp_specialized",
            uses_tma=True,
            splits_k=True,
            split_apart=True,
            has_semaphore=True,
            interpreted=False,
            width_step=16,
            helper_warps=4,
        ),
        Family(
            "warp_specialized_swapped",
            uses_tma=True,
            splits_k=True,
            split_apart=True,
            has_semaphore=True,
            interpreted=False,
            swaps_operands=True,
            width_step=8,
            helper_warps=4,
            least_block_m=8,
        ),
        *(
            Family(
                f"warp_specialized_swapped_cluster{cluster}",
                uses_tma=True,
                interpreted=False,
                swaps_operands=True,
                width_step=8,
                helper_warps=4,
                cluster=cluster,
                least_block_m=8,
            )
            for cluster in (2, 4, 8)
        ),
    )
}


# Bytes along K of a buffer of a Gluon kernel's ring: those that are swizzled.
_RING_BYTES = 128
# What one wgmma multiplies.
_WIDEST = 256
# One program per SM, operands and C through the copy engine: the same text but for who does what.
PERSISTENT_TMA = ("persistent_tma", "persistent_tma_specialized")
# Those in Gluon.
GLUON = tuple(name for name, family in FAMILIES.items() if family.width_step)


def sides(config: Config) -> tuple[int, int]:
    """The side of a Gluon tile that the 64 rows of wgmma go along, and its width."""
    if FAMILIES[config.family].swaps_operands:
        return config.BLOCK_SIZE_N, config.BLOCK_SIZE_M
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N


def k_shares(config: Config) -> int:
    """Programs that share K of a tile: SPLIT_K of them, or those of its cluster."""
    return config.SPLIT_K * FAMILIES[config.family].cluster


def ring_k(element_bytes: int) -> int:
    """Elements along K of a buffer of a Gluon kernel's ring."""
    return _RING_BYTES // element_bytes


def together(config: Config, element_bytes: int = 2) -> int:
    """Buffers of a Gluon kernel's ring that are filled one after the other, with neighbours along K."""
    return config.BLOCK_SIZE_K // ring_k(element_bytes)


def buffer_bytes(rows: int, width: int) -> int:
    """Of one buffer of a Gluon kernel's ring: 128 for each row and column of the tile."""
    return (rows + width) * _RING_BYTES


def landing_bytes(rows: int, width: int, cluster: int) -> int:
    """Of shared memory where a program of a cluster finds the others' sums of the columns that it stores, 4 each."""
    return (cluster - 1) * rows * 8 * -(-width // (8 * cluster)) * 4


def powers_of(width: int) -> tuple[int, ...]:
    """The powers of two, largest first, that add up to a multiple of 8 up to 256."""
    return tuple(1 << bit for bit in range(8, 2, -1) if width & (1 << bit))


def block_problem(family: str, field: str, value: int) -> str:
    """Why the family cannot have this block size ("" when it can); `field` is BLOCK_SIZE_M, _N or _K."""
    facts = FAMILIES[family]
    least, most = (16 if facts.uses_dot else 1), 1024
    if field == "BLOCK_SIZE_M":
        least, most = facts.least_block_m, facts.most_block_m
    elif field == "BLOCK_SIZE_K":
        most = facts.most_block_k
    if not least <= value <= most:
        return f"{value} is not from {least} to {most}"
    if facts.width_step and field == ("BLOCK_SIZE_M" if facts.swaps_operands else "BLOCK_SIZE_N"):
        if value % facts.width_step or value > _WIDEST:
            return f"{value} is not a multiple of {facts.width_step} up to {_WIDEST}"
    elif facts.width_step and field == "BLOCK_SIZE_K":
        if value not in (64, 128, 256):
            return (
                f"{value} is not 64, 128 or 256: one, two or four times what a row of the ring has of 16-bit elements"
            )
    elif value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""
