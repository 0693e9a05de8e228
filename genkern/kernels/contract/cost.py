"""Cost: the terms of what a kernel costs, as its family says them; genkern.search.predict adds them up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The edges of the smallest matrix instruction along M and along N; a shorter tile pads up to them.
EDGES, SWAPPED_EDGES = (16, 16), (8, 16)


@dataclass(frozen=True)
class Turn:
    """What the clusters of a persistent kernel make in one turn, and how.

    `tiles_m` and `tiles_n`: tiles of a cluster along M and along N. `programs_of_tile` share one, `programs` are a
    cluster. `hides_stores`: a tile is multiplied while the one before it goes out. `width_step`: what widths of tiles
    are multiples of. `swapped`: these are along M, and the rows of the matrix instruction along N.
    `swaps_for_few`: the family computes few rows swapped instead. `full_rows`: rows of a program's tile below which the
    matrix unit is not kept busy. `tma_store`: C goes out by TMA; `tma_stores`: sizes of its elements in bytes with
    which it could. `units`: how many SMs clusters have at a time, of so many.
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
        """What is of M and of N, as that of the instruction's rows and that of its columns."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def at_once(self, units: int) -> int:
        """Clusters that run at a time on so many SMs."""
        return max(1, self.units(units) // self.programs)


@dataclass(frozen=True)
class Cost:
    """Terms of the cost of a form's kernels, besides what the form says of loads, clusters and copies.

    `edges`: of its smallest instruction, along M and along N. `vector`: it multiplies without matrix instructions.
    `turn`: its clusters walk over C and hide what can be hidden, so that whole waves of them count; None: programs of
    one tile each, or whose tiles come one after the other. `reduces`: how the parts of SPLIT_K are added up: by a
    "kernel" behind; by the last program of a tile ("semaphore"), which waits for what others have stored; by those that
    share the tiles beyond the last full wave ("shares").
    """

    edges: tuple[int, int] = EDGES
    vector: bool = False
    turn: Turn | None = None
    reduces: str = "kernel"
