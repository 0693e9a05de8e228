"""Variants: kernels of one tile that differ in warps, stages and options stand apart in an order, so that tiles mix.

The model tells tiles apart better than their variants, and of these warps better than stages and options, which change
little of what a kernel is bound by. So the first of each tile and number of warps come before the second of any that
promises not much more. Of 1,621 winners that others publish for gfx942 and gfx950 the first 64 binaries have the tile
of 0.79, and of 0.62 with the winner's warps; with one step of 0.05 for every variant these were 0.71 and 0.48. Both
steps were chosen on these winners; by rates and steps that were chosen on other (N, K) the shares are 0.77 and 0.64
(benchmarks/search/amd_rates.py). What this costs: AITER's winners with their very options, mostly another waves_per_eu,
were there in 0.14, and are in 0.03.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.search.rates.columns import Numbers

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """By how many octaves variants count longer: `warps` for each better number of warps of the same tile, `options`
    for all binaries of a tile and its warps but the best.
    """

    warps: float = 0.15
    options: float = 0.4


@dataclass(frozen=True, eq=False)
class Variants:
    """Of configs [configs] the numbers of their binaries, and of binaries [binaries] the numbers of their tiles with
    warps; of these [tiles and warps] the numbers of tiles.
    """

    binary: Places
    warps: Places
    tile: Places

    def binaries_octaves(self, octaves: Numbers, steps: Steps) -> Numbers:
        """[binaries] log2 of the time of each one's best config, and what is added to it; `octaves` is [configs]."""
        of_binary = _least(octaves, self.binary, len(self.warps))
        of_warps = _least(of_binary, self.warps, len(self.tile))
        behind = steps.warps * _ranks(self.tile, of_warps)
        found: Numbers = of_binary + behind[self.warps] + steps.options * (_ranks(self.warps, of_binary) > 0)
        return found

    def added(self, octaves: Numbers, steps: Steps) -> Numbers:
        """[configs] what is added to `octaves`: the same for configs that share a binary."""
        of_binary = _least(octaves, self.binary, len(self.warps))
        added: Numbers = (self.binaries_octaves(octaves, steps) - of_binary)[self.binary]
        return added


def variants_of(configs: Sequence[Config]) -> Variants:
    """Tiles with a split K are others than without."""
    binaries: dict[Hashable, int] = {}
    warps: dict[Hashable, int] = {}
    tiles: dict[Hashable, int] = {}
    of_binary: list[int] = []
    of_warps: list[int] = []
    binary = np.empty(len(configs), dtype=np.int64)
    for place, config in enumerate(configs):
        number = binaries.setdefault(compiled_of(config), len(binaries))
        binary[place] = number
        if number < len(of_binary):
            continue
        tile = config.family, config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, config.SPLIT_K > 1
        of_binary.append(warps.setdefault((tile, config.num_warps), len(warps)))
        if len(warps) > len(of_warps):
            of_warps.append(tiles.setdefault(tile, len(tiles)))
    return Variants(binary, np.array(of_binary, dtype=np.int64), np.array(of_warps, dtype=np.int64))


def variants_octaves(configs: Sequence[Config], octaves: Numbers) -> Numbers:
    """[configs] what is added to `octaves` [configs], log2 of times, for the variants of the same tile before each."""
    return variants_of(configs).added(octaves, Steps())


def _least(values: Numbers, group: Places, groups: int) -> Numbers:
    """[groups] the least value of each."""
    least = np.full(groups, np.inf)
    np.minimum.at(least, group, values)
    return least


def _ranks(group: Places, values: Numbers) -> Places:
    """[values] how many of the same group come before each; equal ones come as they stand."""
    order = np.lexsort((values, group))
    sorted_group = group[order]
    begins = np.searchsorted(sorted_group, sorted_group)
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - begins
    return ranks
