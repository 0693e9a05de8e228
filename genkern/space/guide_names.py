"""Entries of space files in the names of NVIDIA's guide to autotuning CuTe DSL GEMMs, as entries in genkern's own.

    - family: cute_wgmma
      schedule: [ping_pong]
      mma_tiler_mn: [[128, 128], [128, 168]]
      cluster_shape_mn: [[1, 1], [2, 1]]
      use_2cta_instrs: [false]
      use_tma_store: [true]
      num_stages: [4, 5]
      GROUP_SIZE_M: [4, 8]

They are aliases of parameters: cluster_shape_mn of `cluster`, use_2cta_instrs of `ctas`, use_tma_store of `store`; and
mma_tiler_mn of BLOCK_SIZE_M and BLOCK_SIZE_N, as pairs, of which num_warps follows where an entry has none. The guide
lists tiles as pairs, genkern's ranges are a product: so an entry stands for one of each number of rows (of swapped
tiles, whose instruction has its rows along N, of columns). As in the guide, what of the product of the lists does not
go together is left out: two programs for a tile of 64 rows, or in a cluster of one along M; one for 256 rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.former_names import FORMER
from genkern.gemm.parameter import pair_of
from genkern.kernels.catalogue import CUTE, parameters_of
from genkern.kernels.cute.tile import GROUP_WARPS, groups_of
from genkern.kernels.cute.tile_sm100 import ROWS, STORING_WARPS

KEYS = ("mma_tiler_mn", "cluster_shape_mn", "use_2cta_instrs", "use_tma_store")
WGMMA, TCGEN05 = CUTE
# Where an entry does not say it: what fits is for legality to say.
_DEFAULTS: dict[str, list[Any]] = {"BLOCK_SIZE_K": [64, 128], "SPLIT_K": [1]}
_SIDES: dict[str, list[Any]] = {"schedule": ["cooperative"], "swapped": [0]}
_BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
# What the guide's names stand for, which an entry says once.
_STAND_FOR = ("cluster", "ctas", "store")


def in_own_names(entry: object) -> list[object]:
    """The entry as one or more in genkern's names of today; alone and as it is where it has no others.

    Raises InputError, one line that names the key.
    """
    if not isinstance(entry, dict):
        return [entry]
    entry = _today(entry)
    if not any(key in entry for key in KEYS):
        return [entry]
    family = entry.get("family")
    if family not in CUTE:
        raise InputError(f"{KEYS[0]} and its like are for {' and '.join(CUTE)}, not for {str(family)[:40]!r}")
    for key in KEYS:
        if key not in entry and key != "use_2cta_instrs":
            raise InputError(f"{family}: field {key!r} is missing")
    for key in (*_BLOCKS, *_STAND_FOR):
        if key in entry:
            raise InputError(f"{family}: {key} is said by NVIDIA's names already ({', '.join(KEYS)})")
    tiles = _pairs(family, "mma_tiler_mn", entry["mma_tiler_mn"])
    clusters = _pairs(family, "cluster_shape_mn", entry["cluster_shape_mn"])
    pairs = _flags(family, "use_2cta_instrs", entry.get("use_2cta_instrs", [False]))
    stores = ["tma" if flag else "direct" for flag in _flags(family, "use_tma_store", entry["use_tma_store"])]
    rest = {**_DEFAULTS, **{key: value for key, value in entry.items() if key not in KEYS}}
    if family == TCGEN05:
        found = list(_of_tcgen05(tiles, clusters, pairs))
    elif any(pairs):
        raise InputError(f"{family}: use_2cta_instrs is [false]: wgmma, which it multiplies by, has no such form")
    else:
        found = list(_of_wgmma(tiles, clusters, rest))
    if not found:
        raise InputError(f"{family}: none of these tiles goes with any of these clusters (docs/cute.md)")
    said = {key: value for key, value in rest.items() if key == "num_warps"}
    return [{**rest, "store": stores, **each, **said} for each in found]


def _today(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry with the family's name of today, and what its name said as lists of one value."""
    former = FORMER.get(str(entry.get("family")))
    if former is None:
        return entry
    family, others = former
    said = {name: [value] for name, value in others}
    if any(key in entry for key in KEYS):
        # The way to store is in the guide's names.
        said.pop("store", None)
    return {**said, **entry, "family": family}


def in_guide_names(config: Config) -> dict[str, Any]:
    """The entry that stands for one config of these families, a SPLIT_K of 1 left out."""
    sides = {name: [getattr(config, name)] for name in _SIDES if name in parameters_of(config.family)}
    return {
        "family": config.family,
        **sides,
        "mma_tiler_mn": [[config.BLOCK_SIZE_M, config.BLOCK_SIZE_N]],
        "cluster_shape_mn": [list(pair_of(config.cluster))],
        "use_2cta_instrs": [config.ctas == 2],
        "use_tma_store": [config.store == "tma"],
        "BLOCK_SIZE_K": [config.BLOCK_SIZE_K],
        "num_warps": [config.num_warps],
        "num_stages": [config.num_stages],
        "GROUP_SIZE_M": [config.GROUP_SIZE_M],
        **({"SPLIT_K": [config.SPLIT_K]} if config.SPLIT_K > 1 else {}),
    }


def _of_wgmma(
    tiles: list[tuple[int, int]], clusters: list[tuple[int, int]], rest: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """By side, schedule, and the rows of tiles with the warps that multiply them."""
    sides = {key: rest.get(key, default) for key, default in _SIDES.items()}
    for key, values in sides.items():
        if not isinstance(values, list):
            raise InputError(f"{WGMMA}: {key} = {str(values)[:40]} is not a list of values")
    for swapped in sides["swapped"]:
        for schedule in sides["schedule"]:
            height, width = _BLOCKS[::-1] if swapped else _BLOCKS
            widths: dict[tuple[int, int], list[int]] = defaultdict(list)
            for pair in tiles:
                along = dict(zip(_BLOCKS, pair, strict=True))
                groups = groups_of(along[height], along[width], schedule == "ping_pong")
                widths[along[height], GROUP_WARPS * groups].append(along[width])
            for (rows, warps), columns in widths.items():
                yield {
                    "swapped": [swapped],
                    "schedule": [schedule],
                    "cluster": _said(clusters),
                    height: [rows],
                    width: columns,
                    "num_warps": [warps],
                }


def _of_tcgen05(
    tiles: list[tuple[int, int]], clusters: list[tuple[int, int]], pairs: list[bool]
) -> Iterator[dict[str, Any]]:
    """By programs of a tile, and its rows; four warps bring C."""
    for pair in pairs:
        able = [cluster for cluster in clusters if not (pair and cluster[0] % 2)]
        widths: dict[int, list[int]] = defaultdict(list)
        for rows, columns in tiles:
            if rows in ROWS[1 + pair] or rows not in ROWS[1] + ROWS[2]:
                widths[rows].append(columns)
        for rows, widths_of in widths.items() if able else ():
            yield {
                "ctas": [1 + pair],
                "cluster": _said(able),
                "num_warps": [STORING_WARPS],
                "BLOCK_SIZE_M": [rows],
                "BLOCK_SIZE_N": widths_of,
            }


def _said(clusters: list[tuple[int, int]]) -> list[str]:
    return [f"{along_m}x{along_n}" for along_m, along_n in clusters]


def _pairs(family: object, key: str, value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{family}: {key} is not a list of pairs [m, n]")
    found = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise InputError(f"{family}: {key}: {str(pair)[:40]} is no pair of whole numbers [m, n] from 1 on")
        if tuple(pair) in found:
            raise InputError(f"{family}: {key}: {pair} is listed twice")
        found.append((pair[0], pair[1]))
    return found


def _flags(family: object, key: str, value: Any) -> list[bool]:
    if not isinstance(value, list) or not value or not all(isinstance(flag, bool) for flag in value):
        raise InputError(f"{family}: {key} is not a list of true and false")
    if len(set(value)) < len(value):
        raise InputError(f"{family}: {key}: {value[0]} is listed twice")
    return value
