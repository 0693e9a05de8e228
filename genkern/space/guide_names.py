"""Entries of space files in the names of NVIDIA's guide to autotuning CuTe DSL GEMMs, as entries in genkern's own.

    - family: cute_ping_pong
      mma_tiler_mn: [[128, 128], [128, 168]]
      cluster_shape_mn: [[1, 1], [2, 1]]
      use_2cta_instrs: [false]
      use_tma_store: [true]
      num_stages: [4, 5]
      GROUP_SIZE_M: [4, 8]

Such an entry stands for one of each family that a cluster, a way to store and (on sm_100) a number of programs for a
tile make, and of each number of rows (in swapped families, whose instruction has its rows along N, of columns): the
guide lists tiles as pairs, genkern's ranges are a product. As in the guide, what of the product of the lists does not
go together is left out: two programs for a tile of 64 rows, or in a cluster of one along M; one for 256 rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.kernels.cute import dense, dense_sm100
from genkern.kernels.cute.tile import GROUP_WARPS, groups_of
from genkern.kernels.cute.tile_sm100 import ROWS, STORING_WARPS

KEYS = ("mma_tiler_mn", "cluster_shape_mn", "use_2cta_instrs", "use_tma_store")
SCHEDULES = (*dense.SCHEDULES, dense_sm100.SCHEDULE)
# Of each of sm_90's schedules one family, whichever: they differ in the cluster and the way to store.
_FORM_OF = {form.schedule: form for form in dense.FORMS.values()}
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
        raise InputError(f"{KEYS[0]} and its like are for {', '.join(SCHEDULES)}, not for {str(family)[:40]!r}")
    for key in KEYS:
        if key not in entry and key != "use_2cta_instrs":
            raise InputError(f"{family}: field {key!r} is missing")
    for key in _BLOCKS:
        if key in entry:
            raise InputError(f"{family}: mma_tiler_mn says {key} already")
    pairs = _flags(family, "use_2cta_instrs", entry.get("use_2cta_instrs", [False]))
    if any(pairs) and family != dense_sm100.SCHEDULE:
        raise InputError(f"{family}: use_2cta_instrs is [false]: wgmma, which it multiplies by, has no such form")
    clusters = _pairs(family, "cluster_shape_mn", entry["cluster_shape_mn"])
    stores = _flags(family, "use_tma_store", entry["use_tma_store"])
    form = _FORM_OF.get(str(family))
    if form and form.split and any(stores):
        raise InputError(f"{family}: use_tma_store is [false]: what it stores is sums in float32")
    if form and form.split and not _are_splits(entry.get("SPLIT_K")):
        raise InputError(f"{family}: SPLIT_K is a list of numbers from 2 on, of parts that K is split into")
    height, width = _BLOCKS[::-1] if form and form.swapped else _BLOCKS
    widths: dict[tuple[int, int], list[int]] = defaultdict(list)
    for pair in _pairs(family, "mma_tiler_mn", entry["mma_tiler_mn"]):
        along = dict(zip(_BLOCKS, pair, strict=True))
        warps = _warps(str(family), along[height], along[width])
        widths[along[height], warps].append(along[width])
    rest = {**_DEFAULTS, **{key: value for key, value in entry.items() if key not in (*KEYS, "family")}}
    found = [
        {
            "family": _name(str(family), pair, cluster, stored),
            height: [rows],
            width: columns,
            "num_warps": [warps],
            **rest,
        }
        for pair in pairs
        for cluster in clusters
        for stored in stores
        for (rows, warps), columns in widths.items()
        if _go_together(str(family), pair, cluster, rows)
    ]
    if not found:
        raise InputError(f"{family}: none of these tiles goes with any of these clusters (docs/cute.md)")
    return list(found)


def in_guide_names(config: Config) -> dict[str, Any]:
    """The entry that stands for one config of these families, a SPLIT_K of 1 left out."""
    if form := dense_sm100.FORMS.get(config.family):
        schedule, pair, shape = dense_sm100.SCHEDULE, form.ctas == 2, (form.cluster_m, form.cluster_n)
        stored = form.tma_store
    else:
        other = dense.FORMS[config.family]
        schedule, pair, shape = other.schedule, False, (other.cluster_m, other.cluster_n)
        stored = other.tma_store
    return {
        "family": schedule,
        "mma_tiler_mn": [[config.BLOCK_SIZE_M, config.BLOCK_SIZE_N]],
        "cluster_shape_mn": [list(shape)],
        "use_2cta_instrs": [pair],
        "use_tma_store": [stored],
        "BLOCK_SIZE_K": [config.BLOCK_SIZE_K],
        "num_warps": [config.num_warps],
        "num_stages": [config.num_stages],
        "GROUP_SIZE_M": [config.GROUP_SIZE_M],
        **({"SPLIT_K": [config.SPLIT_K]} if config.SPLIT_K > 1 else {}),
    }


def _are_splits(values: object) -> bool:
    return isinstance(values, list) and bool(values) and all(type(value) is int and value >= 2 for value in values)


def _go_together(schedule: str, pair: bool, cluster: tuple[int, int], rows: int) -> bool:
    """Whether that is a family, and a tile of its: sm_90's are all tried, and refused by name."""
    if schedule != dense_sm100.SCHEDULE:
        return True
    return not (pair and cluster[0] % 2) and (rows in ROWS[1 + pair] or rows not in ROWS[1] + ROWS[2])


def _warps(schedule: str, rows: int, columns: int) -> int:
    if schedule == dense_sm100.SCHEDULE:
        return STORING_WARPS
    return GROUP_WARPS * groups_of(rows, columns, _FORM_OF[schedule].ping_pong)


def _name(schedule: str, pair: bool, cluster: tuple[int, int], tma_store: bool) -> str:
    if form := _FORM_OF.get(schedule):
        return replace(form, cluster_m=cluster[0], cluster_n=cluster[1], tma_store=tma_store).name
    return dense_sm100.Form(1 + pair, *cluster, tma_store).name


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
