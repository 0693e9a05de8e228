"""`Cost`: the cost terms that a family declares for its kernels. genkern.search.cost_model.predict adds them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# Rows (M) and columns (N) of the smallest matrix instruction. A smaller tile is padded to this size.
EDGES, SWAPPED_EDGES = (16, 16), (8, 16)


@dataclass(frozen=True)
class TileWave:
    """One step in which the clusters of a persistent kernel walk over C: their tiles, and how they store C.

    tiles_m: tiles of one cluster along M.
    tiles_n: tiles of one cluster along N.
    programs_of_tile: programs that compute one tile together.
    programs: programs in a cluster.
    tma_store: True if C is stored by TMA.
    tma_stores: element sizes of C, in bytes, for which the family has a form that stores by TMA.
    hides_stores: True if a cluster multiplies one tile while it stores the tile before.
    width_step: tile widths are multiples of this.
    units: function from the number of SMs of a GPU to the number that clusters can occupy at the same time.
    swapped: True if the width of a tile lies along M and the rows of the matrix instruction along N.
    swaps_for_few: True if the family has a swapped form for problems with few rows.
    full_rows: rows of a program's tile below which the tensor cores are not fully used; 0 if there is no such limit.
    """

    tiles_m: int
    tiles_n: int
    programs_of_tile: int
    programs: int
    tma_store: bool
    tma_stores: tuple[int, ...]
    hides_stores: bool
    width_step: int
    units: Callable[[int], int]
    swapped: bool = False
    swaps_for_few: bool = False
    full_rows: int = 0

    def sides(self, along_m: int, along_n: int) -> tuple[int, int]:
        """Return lengths along M and N as (along the instruction's rows, along its columns)."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def at_once(self, units: int) -> int:
        """Return the number of clusters that run at the same time on a GPU with `units` SMs, at least 1."""
        return max(1, self.units(units) // self.programs)


@dataclass(frozen=True)
class Cost:
    """Cost terms of a form's kernels that follow from neither its loads, its clusters nor its copies.

    edges: rows and columns of the form's smallest matrix instruction, along M and N.
    vector: True if the kernels multiply without matrix instructions.
    turn: how the clusters of a persistent kernel walk over C, so that the cost model counts whole waves of them. None
        if each program computes one tile, or its tiles strictly one after the other.
    reduces: the kernel or programs that add up the partial sums of SPLIT_K. "kernel": a second kernel. "semaphore": the
        last program of each tile, once the other programs have stored their sums. "shares": the programs that share the
        tiles beyond the last full wave.
    """

    edges: tuple[int, int] = EDGES
    vector: bool = False
    tile_wave: TileWave | None = None
    reduces: str = "kernel"
