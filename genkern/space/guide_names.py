"""Translation of space-file entries that use the names of NVIDIA's guide to autotuning CuTe DSL GEMMs.

    - family: cute_wgmma
      schedule: [ping_pong]
      mma_tiler_mn: [[128, 128], [128, 168]]
      cluster_shape_mn: [[1, 1], [2, 1]]
      use_2cta_instrs: [false]
      use_tma_store: [true]
      num_stages: [4, 5]
      GROUP_SIZE_M: [4, 8]

The guide's names are aliases of genkern's parameters: cluster_shape_mn of `cluster`, use_2cta_instrs of `ctas`,
use_tma_store of `store`, and mma_tiler_mn of pairs of BLOCK_SIZE_M and BLOCK_SIZE_N. num_warps follows from the tile if
an entry omits it.

The guide lists tiles as pairs, whereas the ranges of genkern's entries are multiplied. So one entry becomes one genkern
entry for each height of a tile (the side along the instruction's rows: M, or N in swapped tiles). As in the guide,
combinations that do not fit together are omitted: two programs for a tile of 64 rows or with a cluster that is odd
along M, and one program for 256 rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.parameter import pair_of
from genkern.kernels.catalogue import CUTE, parameters_of
from genkern.kernels.cute.tile import GROUP_WARPS, groups_of
from genkern.kernels.cute.tile_sm100 import ROWS, STORING_WARPS

KEYS = ("mma_tiler_mn", "cluster_shape_mn", "use_2cta_instrs", "use_tma_store")
WGMMA, TCGEN05 = CUTE
# Values of fields that an entry may omit. Legality drops configs whose values do not fit.
_DEFAULTS: dict[str, list[Any]] = {"BLOCK_SIZE_K": [64, 128], "SPLIT_K": [1]}
_SIDES: dict[str, list[Any]] = {"schedule": ["cooperative"], "swapped": [0]}
_BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")
# genkern's parameters that the guide's names set. An entry must not use both names.
_STAND_FOR = ("cluster", "ctas", "store")


def in_own_names(entry: object) -> list[object]:
    """Return the entry as one or more entries with genkern's names; unchanged if it uses only these.

    Raises InputError, in one line that names the key.
    """
    if not isinstance(entry, dict):
        return [entry]
    if not any(key in entry for key in KEYS):
        return [entry]
    family = entry.get("family")
    if family not in CUTE:
        raise InputError(
            f"{KEYS[0]} and NVIDIA's other names are for {' and '.join(CUTE)}, not for {str(family)[:40]!r}"
        )
    for key in KEYS:
        if key not in entry and key != "use_2cta_instrs":
            raise InputError(f"{family}: field {key!r} is missing")
    for key in (*_BLOCKS, *_STAND_FOR):
        if key in entry:
            raise InputError(f"{family}: {key} is already given by NVIDIA's names ({', '.join(KEYS)})")
    tiles = _pairs(family, "mma_tiler_mn", entry["mma_tiler_mn"])
    clusters = _pairs(family, "cluster_shape_mn", entry["cluster_shape_mn"])
    pairs = _flags(family, "use_2cta_instrs", entry.get("use_2cta_instrs", [False]))
    stores = ["tma" if flag else "direct" for flag in _flags(family, "use_tma_store", entry["use_tma_store"])]
    rest = {**_DEFAULTS, **{key: value for key, value in entry.items() if key not in KEYS}}
    if family == TCGEN05:
        found = list(_of_tcgen05(tiles, clusters, pairs))
    elif any(pairs):
        raise InputError(f"{family}: use_2cta_instrs must be [false]: wgmma has no form for two programs")
    else:
        found = list(_of_wgmma(tiles, clusters, rest))
    if not found:
        raise InputError(f"{family}: none of these tiles fits any of these clusters (docs/cute.md)")
    said = {key: value for key, value in rest.items() if key == "num_warps"}
    return [{**rest, "store": stores, **each, **said} for each in found]


def in_guide_names(config: Config) -> dict[str, Any]:
    """Return the entry in the guide's names that stands for exactly one config. A SPLIT_K of 1 is omitted."""
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
    """Yield one entry for each side, schedule, and height of a tile with the number of warps that multiply it."""
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
    """Yield one entry for each number of programs per tile and each number of rows. Four warps store C."""
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
            raise InputError(f"{family}: {key}: {str(pair)[:40]} is no pair of whole numbers [m, n], each at least 1")
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
