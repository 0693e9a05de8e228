"""The kernel families there are, and what follows from the family of a config."""

from __future__ import annotations

from pathlib import Path

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute import own
from genkern.kernels.cute.dense import CUTE_DENSE
from genkern.kernels.cute.dense_sm100 import CUTE_DENSE_SM100
from genkern.kernels.families.few_rows import GEMV, SKINNY, SKINNY_DOT
from genkern.kernels.families.gluon_tile import ring_k
from genkern.kernels.families.persistent_tma import PERSISTENT_TMA as PERSISTENT
from genkern.kernels.families.persistent_tma import PERSISTENT_TMA_SPECIALIZED
from genkern.kernels.families.realigned import REALIGNED
from genkern.kernels.families.semaphore import STREAM_K, TILED_SEMAPHORE, TILED_SWAPPED
from genkern.kernels.families.tiled import TILED
from genkern.kernels.families.tiled_atomic import TILED_ATOMIC
from genkern.kernels.families.tiled_tma import SPLIT_TMA, TILED_TMA, TILED_TMA_SWAPPED
from genkern.kernels.families.warp_specialized import (
    CLUSTERS,
    SIDE_BY_SIDE,
    WARP_SPECIALIZED,
    WARP_SPECIALIZED_SWAPPED,
)
from genkern.ops.op import get_op

FAMILIES = {
    family.name: family
    for family in (
        *(
            TILED,
            TILED_SEMAPHORE,
            STREAM_K,
            TILED_ATOMIC,
            GEMV,
            SKINNY,
            SKINNY_DOT,
            TILED_SWAPPED,
            TILED_TMA,
            SPLIT_TMA,
            TILED_TMA_SWAPPED,
        ),
        *(PERSISTENT, PERSISTENT_TMA_SPECIALIZED, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED, *CLUSTERS, *SIDE_BY_SIDE),
        *(*REALIGNED, *CUTE_DENSE, *CUTE_DENSE_SM100),
    )
}


def add_file(file: str | Path) -> str:
    """The name of the family that a file declares, which is one of FAMILIES from here on, and in what this one starts.

    Raises InputError for a file that declares none, or one that genkern has.
    """
    file = Path(file).resolve()
    family = own.family_of(file)
    if family.name in FAMILIES and file not in own.files():
        raise InputError(f"{file}: there is a family {family.name} already: take another name")
    FAMILIES[family.name] = family
    own.remember(file)
    return family.name


for _file in own.files():
    add_file(_file)


# One program per SM, operands and C through the copy engine: the same text but for who does what.
PERSISTENT_TMA = ("persistent_tma", "persistent_tma_specialized")
# Those with kernels of their own in Gluon.
GLUON = tuple(name for name, family in FAMILIES.items() if family.in_gluon and not family.realigns)
# Those of genkern's in CuTe DSL, which is an optional extra.
CUTE = tuple(family.name for family in (*CUTE_DENSE, *CUTE_DENSE_SM100))


def sides(config: Config) -> tuple[int, int]:
    """The side of a Gluon tile that the 64 rows of wgmma go along, and its width."""
    if FAMILIES[config.family].swaps_operands:
        return config.BLOCK_SIZE_N, config.BLOCK_SIZE_M
    return config.BLOCK_SIZE_M, config.BLOCK_SIZE_N


def k_shares(config: Config) -> int:
    """Programs that share K of a tile: SPLIT_K of them, or those of its cluster."""
    return config.SPLIT_K * FAMILIES[config.family].cluster


def together(config: Config, element_bytes: int = 2) -> int:
    """Buffers of a Gluon kernel's ring that are filled one after the other, with neighbours along K."""
    return config.BLOCK_SIZE_K // ring_k(element_bytes)


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
        if value % facts.width_step or value > facts.widest:
            return f"{value} is not a multiple of {facts.width_step} up to {facts.widest}"
    elif facts.width_step and field == "BLOCK_SIZE_K":
        if facts.language == "cute" and value not in (32, 64, 128):
            return f"{value} is not 32, 64 or 128"
        if facts.language != "cute" and value not in (64, 128, 256):
            return (
                f"{value} is not 64, 128 or 256: one, two or four times what a row of the ring has of 16-bit elements"
            )
    elif facts.height_step:
        if value % facts.height_step:
            return f"{value} is not a multiple of {facts.height_step}"
    elif value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""


def warps_problem(family: str, value: int) -> str:
    """Why the family cannot have so many warps ("" when it can, or when that hangs on the tile)."""
    if value < 1:
        return f"{value} is below 1"
    if FAMILIES[family].language == "triton" and value & (value - 1):
        return f"{value} is not a power of two, which Triton needs"
    return ""


def is_deterministic(problem: GemmProblem, config: Config) -> bool:
    """False for float sums whose order is that in which programs happen to run: tiled_atomic's.

    Its int32 sums (int8 operands) are exact in any order, so they count as deterministic.
    """
    return FAMILIES[config.family].deterministic or get_op(problem.op).accumulator(problem) == "int32"
