"""Spreads variants of one tile (warps, stages, options) in an order of configs, so that different tiles alternate.

The model distinguishes tiles better than variants, and among variants warps better than stages and options, which
hardly change what bounds a kernel. So the first variant of each tile and number of warps comes before second variants,
unless these promise much more. Of 1,621 winners that other projects publish for gfx942 and gfx950, the first 64
binaries contain the tile of 79 %, and tile and warps of 62 %; with one step of 0.05 for every variant these were 71 %
and 48 %. Both steps were fitted to these winners; with rates and steps that were fitted to other (N, K) the shares are
77 % and 64 % (benchmarks/search/amd_rates.py). The cost: the first 64 binaries contain AITER's winners with all their
options, which mostly differ in waves_per_eu, for 3 % instead of 14 %.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genkern.compile.binary_groups import binary_group
from genkern.gemm.config import Config
from genkern.search.cost_model.columns import Numbers

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Octaves (log2 of time) by which variants are moved back.

    warps: for each better number of warps of the same tile
    options: for all binaries of a tile and number of warps except for the best
    """

    warps: float = 0.15
    options: float = 0.4


@dataclass(frozen=True, eq=False)
class Variants:
    """Groups of configs, as index arrays.

    binary [configs]: number of each config's binary
    warps [binaries]: number of each binary's tile and warps
    tile [tiles and warps]: number of the tile
    """

    binary: Places
    warps: Places
    tile: Places

    def binaries_octaves(self, octaves: Numbers, steps: Steps) -> Numbers:
        """Return log2 of the time of each binary's best config, plus the octaves that are added; `octaves` is
        [configs]."""
        of_binary = _least(octaves, self.binary, len(self.warps))
        of_warps = _least(of_binary, self.warps, len(self.tile))
        behind = steps.warps * _ranks(self.tile, of_warps)
        found: Numbers = of_binary + behind[self.warps] + steps.options * (_ranks(self.warps, of_binary) > 0)
        return found

    def added(self, octaves: Numbers, steps: Steps) -> Numbers:
        """Return what is added to `octaves` [configs]; it is equal for configs that share a binary."""
        of_binary = _least(octaves, self.binary, len(self.warps))
        added: Numbers = (self.binaries_octaves(octaves, steps) - of_binary)[self.binary]
        return added


def variants_of(configs: Sequence[Config]) -> Variants:
    """Return the groups of `configs`; tiles with and without split K are different."""
    binaries: dict[Hashable, int] = {}
    warps: dict[Hashable, int] = {}
    tiles: dict[Hashable, int] = {}
    of_binary: list[int] = []
    of_warps: list[int] = []
    binary = np.empty(len(configs), dtype=np.int64)
    for place, config in enumerate(configs):
        number = binaries.setdefault(binary_group(config), len(binaries))
        binary[place] = number
        if number < len(of_binary):
            continue
        tile = config.family, config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, config.SPLIT_K > 1
        of_binary.append(warps.setdefault((tile, config.num_warps), len(warps)))
        if len(warps) > len(of_warps):
            of_warps.append(tiles.setdefault(tile, len(tiles)))
    return Variants(binary, np.array(of_binary, dtype=np.int64), np.array(of_warps, dtype=np.int64))


def variants_octaves(configs: Sequence[Config], octaves: Numbers) -> Numbers:
    """Return what is added to `octaves` [configs], log2 of times, due to better variants of the same tile."""
    return variants_of(configs).added(octaves, Steps())


def _least(values: Numbers, group: Places, groups: int) -> Numbers:
    """Return the smallest value of each group [groups]."""
    least = np.full(groups, np.inf)
    np.minimum.at(least, group, values)
    return least


def _ranks(group: Places, values: Numbers) -> Places:
    """Return the rank of each value within its group; equal values keep their order."""
    order = np.lexsort((values, group))
    sorted_group = group[order]
    begins = np.searchsorted(sorted_group, sorted_group)
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - begins
    return ranks
