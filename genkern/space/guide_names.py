"""Entries of space files in the names of NVIDIA's guide to autotuning CuTe DSL GEMMs, as entries in genkern's own.

    - family: cute_ping_pong
      mma_tiler_mn: [[128, 128], [128, 168]]
      cluster_shape_mn: [[1, 1], [2, 1]]
      use_2cta_instrs: [false]
      use_tma_store: [true]
      num_stages: [4, 5]
      GROUP_SIZE_M: [4, 8]

Such an entry stands for one of each family that a cluster and a way to store make, and of each number of rows: the
guide lists tiles as pairs, genkern's ranges are a product.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from genkern.errors import InputError
from genkern.kernels.cute.tile import GROUP_WARPS, groups_of

KEYS = ("mma_tiler_mn", "cluster_shape_mn", "use_2cta_instrs", "use_tma_store")
SCHEDULES = ("cute_cooperative", "cute_ping_pong")
# Where an entry does not say it: what fits is for legality to say.
_DEFAULTS: dict[str, list[int]] = {"BLOCK_SIZE_K": [64, 128], "SPLIT_K": [1]}
_BLOCKS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N")


def in_own_names(entry: object) -> list[object]:
    """The entry as one or more in genkern's names; alone and as it is where it has none of the guide's.

    Raises InputError, one line that names the key.
    """
    if not isinstance(entry, dict) or not any(key in entry for key in KEYS):
        return [entry]
    family = entry.get("family")
    if family not in SCHEDULES:
        raise InputError(f"{KEYS[0]} and its like are for {' and '.join(SCHEDULES)}, not for {str(family)[:40]!r}")
    for key in KEYS:
        if key not in entry and key != "use_2cta_instrs":
            raise InputError(f"{family}: field {key!r} is missing")
    for key in _BLOCKS:
        if key in entry:
            raise InputError(f"{family}: mma_tiler_mn says {key} already")
    if any(_flags(family, "use_2cta_instrs", entry.get("use_2cta_instrs", [False]))):
        raise InputError(f"{family}: use_2cta_instrs is [false]: wgmma, which it multiplies by, has no such form")
    clusters = _pairs(family, "cluster_shape_mn", entry["cluster_shape_mn"])
    widths: dict[int, list[int]] = defaultdict(list)
    for rows, columns in _pairs(family, "mma_tiler_mn", entry["mma_tiler_mn"]):
        widths[rows].append(columns)
    rest = {**_DEFAULTS, **{key: value for key, value in entry.items() if key not in (*KEYS, "family")}}
    return [
        {
            "family": _name(str(family), cluster, stored),
            "BLOCK_SIZE_M": [rows],
            "BLOCK_SIZE_N": columns,
            "num_warps": [GROUP_WARPS * groups_of(rows, family == SCHEDULES[1])],
            **rest,
        }
        for cluster in clusters
        for stored in _flags(family, "use_tma_store", entry["use_tma_store"])
        for rows, columns in widths.items()
    ]


def _name(schedule: str, cluster: tuple[int, int], tma_store: bool) -> str:
    shape = "" if cluster == (1, 1) else f"_{cluster[0]}x{cluster[1]}"
    return f"{schedule}{shape}" + ("" if tma_store else "_direct")


def _pairs(family: object, key: str, value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, list) or not value:
        raise InputError(f"{family}: {key} is not a list of pairs [m, n]")
    found = []
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2 or not all(type(side) is int for side in pair):
            raise InputError(f"{family}: {key}: {str(pair)[:40]} is no pair of whole numbers [m, n]")
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
