"""Variants: kernels of one tile that differ in warps, stages and options stand apart in an order, so that tiles mix.

The model tells tiles apart better than their variants. In a sample of AITER's winners on gfx942 and gfx950 the tile is
among the first 64 binaries in 0.63 without this, in 0.88 with it; a binary with its warps, too, in 0.54 both times.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from genkern.farm.sharing import compiled_of
from genkern.gemm.config import Config
from genkern.search.rates.columns import Numbers

# Each binary more of the same tile counts so much longer: 3.5 %. Twice as much brings hardly more tiles, and loses the
# winner's number of warps more often (0.48).
_OCTAVES = 0.05


def variants_octaves(configs: Sequence[Config], octaves: Numbers) -> Numbers:
    """[configs] what is added to `octaves` [configs], log2 of times, for the binaries of the same tile before each.

    Tiles with a split K are others than without. Configs that share a binary have the same added.
    """
    numbers: dict[Hashable, dict[Hashable, int]] = {}
    added = np.zeros(len(configs))
    for place in np.argsort(octaves, kind="stable").tolist():
        config = configs[place]
        tile = config.family, config.BLOCK_SIZE_M, config.BLOCK_SIZE_N, config.BLOCK_SIZE_K, config.SPLIT_K > 1
        of_tile = numbers.setdefault(tile, {})
        added[place] = _OCTAVES * of_tile.setdefault(compiled_of(config), len(of_tile))
    return added
