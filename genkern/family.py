"""Kernel families: what the pipeline must know of each besides its template."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Facts of one family.

    `uses_tma`: loads through descriptors (sm_90 and later). `splits_k`: takes SPLIT_K above 1.
    `runs_on_amd`: has an AMD form. `interpreted`: runs under Triton's interpreter (Gluon does not).
    `uses_dot`: multiplies by tl.dot or wgmma, so that blocks have 16 elements at least.
    `any_width`: BLOCK_SIZE_N may be any multiple of 16, not only a power of two.
    `helper_warps`: warps that it runs beyond num_warps.
    `places_loads`: takes xcd_remap and cache_modifier.
    `has_semaphore`: one program of a tile adds up its splits, in a fixed order, in the same kernel.
    `deterministic`: two runs agree to the bit, whatever the type; see determinism.py for those that are not.
    `swaps_operands`: computes C transposed, so that N takes the long side of the matrix instruction.
    `split_apart`: has a kernel of its own for SPLIT_K above 1.
    `least_block_m` to `most_block_m`: its BLOCK_SIZE_M. `kernels_before`: kernels that it launches before its main one.
    """

    name: str
    uses_tma: bool = False
    splits_k: bool = False
    runs_on_amd: bool = False
    interpreted: bool = True
    uses_dot: bool = True
    any_width: bool = False
    helper_warps: int = 0
    places_loads: bool = False
    has_semaphore: bool = False
    deterministic: bool = True
    swaps_operands: bool = False
    split_apart: bool = False
    least_block_m: int = 16
    most_block_m: int = 1024
    kernels_before: int = 0


FAMILIES = {
    family.name: family
    for family in (
        Family("tiled", splits_k=True, split_apart=True, runs_on_amd=True, places_loads=True),
        Family("tiled_semaphore", splits_k=True, runs_on_amd=True, has_semaphore=True),
        Family("stream_k", runs_on_amd=True),
        Family("tiled_atomic", splits_k=True, runs_on_amd=True, deterministic=False, kernels_before=1),
        Family("gemv", runs_on_amd=True, uses_dot=False, least_block_m=1),
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
        # Four: registers are dealt out to whole warpgroups, so the one loading warp costs a group.
        Family(
            "warp_specialized",
            uses_tma=True,
            splits_k=True,
            split_apart=True,
            has_semaphore=True,
            interpreted=False,
            any_width=True,
            helper_warps=4,
        ),
        Family(
            "warp_specialized_tiled",
            uses_tma=True,
            interpreted=False,
            any_width=True,
            helper_warps=4,
        ),
    )
}


def widths(block_size_n: int) -> tuple[int, int, int]:
    """The three power-of-two widths, largest first and 0 where there is none, that add up to a tile's width.

    Raises ValueError when more than three are needed or one is below 16.
    """
    parts = [1 << bit for bit in range(8, 3, -1) if block_size_n & (1 << bit)]
    if sum(parts) != block_size_n or len(parts) > 3:
        raise ValueError(f"{block_size_n} is not the sum of at most three powers of two from 16 to 256")
    return (*parts, 0, 0)[:3]  # type: ignore[return-value]


def block_problem(family: str, field: str, value: int) -> str:
    """Why the family cannot have this block size ("" when it can); `field` is BLOCK_SIZE_M, _N or _K."""
    facts = FAMILIES[family]
    least, most = (16 if facts.uses_dot else 1), 1024
    if field == "BLOCK_SIZE_M":
        least, most = facts.least_block_m, facts.most_block_m
    if not least <= value <= most:
        return f"{value} is not from {least} to {most}"
    if field == "BLOCK_SIZE_N" and facts.any_width:
        try:
            widths(value)
        except ValueError as error:
            return str(error)
    elif value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""
