"""What a cluster makes of C in one turn, of every dense family in CuTe DSL, and the shared memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.cute import dense, dense_sm100
from genkern.kernels.cute.tile import WIDTH_STEP
from genkern.kernels.families import limits

FAMILIES = (*dense.FORMS, *dense_sm100.FORMS)
# Widths of tiles go by so many columns.
_STEPS = {**dict.fromkeys(dense.FORMS, WIDTH_STEP), **dict.fromkeys(dense_sm100.FORMS, 32)}


@dataclass(frozen=True)
class Turn:
    """Tiles along M and along N, the programs of each and of the cluster, and whether C goes out by TMA.

    `hides_stores`: a tile is multiplied while the one before it goes out. `width_step`: what widths are multiples of.
    `swapped`: these are along M, and the rows of the matrix instruction along N.
    """

    tiles_m: int
    tiles_n: int
    programs_of_tile: int
    programs: int
    tma_store: bool
    hides_stores: bool
    width_step: int
    swapped: bool = False

    def sides(self, along_m: int, along_n: int) -> tuple[int, int]:
        """What is of M and of N, as that of the instruction's rows and that of its columns."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)


@lru_cache(maxsize=1024)
def turn_of(family: str) -> Turn | None:
    """Of a family by its name; None for one that is none of these."""
    if form := dense.FORMS.get(family):
        shape = form.cluster_m, form.cluster_n, 1, form.cluster
        return Turn(*shape, form.tma_store, form.ping_pong, _STEPS[family], form.swapped)
    if pair := dense_sm100.FORMS.get(family):
        return Turn(pair.tiles_m, pair.cluster_n, pair.ctas, pair.cluster, pair.tma_store, True, _STEPS[family])
    return None


def shared_bytes(problem: GemmProblem, config: Config) -> int:
    """Shared memory of one program of such a family, in bytes."""
    if config.family in dense.FORMS:
        return dense.shared_bytes(problem, config)
    return dense_sm100.shared_bytes(problem, config)


def units_in_clusters(family: str, units: int) -> int:
    """SMs that clusters of such a family have at a time, of so many."""
    if form := dense.FORMS.get(family):
        return limits.units_in_clusters(units, form.cluster)
    return dense_sm100.units_in_clusters(units, dense_sm100.FORMS[family].cluster)
