"""Finds the algorithms that cuBLASLt offers for an operation: its heuristic's, and further ones by enumeration.

The heuristic (CUBLASLT_SEARCH_BEST_FIT) returns about eight algorithms, even if 256 are requested, best first by its
own model. An algorithm is an id with a config (AlgorithmConfig), and only a check of each config tells whether it runs.
Enumeration therefore takes, in turn, configs that differ from one of the heuristic's algorithms in one field, and
configs of ids that the heuristic did not return. The number of checks, which take microseconds of host time each, and
the number of results are limited.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from ctypes import byref, c_int
from dataclasses import dataclass, fields, replace
from typing import Any, cast

from genkern.runtime.backends import cublaslt_api as api
from genkern.runtime.backends.cublaslt_api import Algo, Api, HeuristicResult
from genkern.runtime.backends.lt_api import REDUCTION_NONE, STATUS_SUCCESS, Attribute
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Algorithm, Matmul, Pointers

# Algorithms that are requested from the heuristic: far more than it has been seen to return.
ASKED = 256
_IDS = 256
MOST_CHECKS = 4096
# Values of split-K that are tried; the library accepts any.
_SPLITS = (2, 3, 4, 5, 6, 8, 12, 16)
# cublasLtClusterShape_t: 0 lets the library choose; then shapes of up to eight programs, smaller ones first.
_CLUSTERS = (0, 2, 3, 5, 4, 6, 8, 7, 9, 11, 12)
# cublasLtMatmulInnerShape_t.
_INNER_SHAPES = (0, 1, 2, 3, 4)
_MOST_CUSTOM = 32


@dataclass(frozen=True)
class AlgorithmConfig:
    """The parts of an algorithm, with the numbers of cublasLt.h (cublasLtMatmulAlgoConfigAttributes_t)."""

    id: int
    tile: int = 0
    split_k: int = 1
    reduction: int = REDUCTION_NONE
    swizzle: int = 0
    custom: int = 0
    stages: int = 0
    inner_shape: int = 0
    cluster: int = 0

    def __str__(self) -> str:
        """Return the fields that differ from their defaults."""
        said = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return " ".join(f"{name} {value}" for name, value, default in said if value != default)


@dataclass(frozen=True)
class Capabilities:
    """The values that a config's fields may have for one id (cublasLtMatmulAlgoCapAttributes_t).

    tiles, stages: the supported values.
    splits: True if split-K is supported.
    reductions: mask of the reduction schemes that are supported and allowed for the operation.
    swizzles: True if swizzling of programs is supported.
    most_custom: the largest custom option.
    """

    tiles: tuple[int, ...]
    stages: tuple[int, ...]
    splits: bool
    reductions: int
    swizzles: bool
    most_custom: int


def checked(matmul: Matmul, algorithm: Algorithm, pointers: Pointers) -> Algorithm | None:
    """Return the algorithm with the workspace that it needs here; None if the library says that it does not run."""
    result = HeuristicResult()
    asked_of = matmul.handle, matmul.descriptor(pointers).value, *matmul.layouts
    status = matmul.library.status("MatmulAlgoCheck", *asked_of, byref(algorithm.algo), byref(result))
    if status != STATUS_SUCCESS:
        return None
    return Algorithm(algorithm.data, result.workspace_size, result.waves_count, algorithm.source)


def beyond(
    matmul: Matmul,
    pointers: Pointers,
    known: Sequence[Algorithm],
    most: int,
    workspace_bytes: int = WORKSPACE_BYTES,
    most_checks: int = MOST_CHECKS,
) -> list[Algorithm]:
    """Return up to `most` algorithms that run and are not in `known`, found with at most `most_checks` checks."""
    seen = {config_of(_library(matmul), algorithm.algo) for algorithm in known}
    found: list[Algorithm] = []
    checks = 0
    for config in _configs(matmul, known):
        if len(found) == most or checks == most_checks:
            break
        if config in seen:
            continue
        seen.add(config)
        checks += 1
        algo = algorithm_of_config(matmul, config)
        if algo is None:
            continue
        able = checked(matmul, Algorithm(bytes(algo), 0, source="enumerated"), pointers)
        if able is not None and able.workspace_bytes <= workspace_bytes:
            found.append(able)
    return found


def config_of(library: Api, algo: Any) -> AlgorithmConfig:
    """Return the config of an algorithm as the library states it."""
    return AlgorithmConfig(
        **{
            name: library.number("MatmulAlgoConfig", algo, attribute)
            for name, attribute in api.CONFIG_ATTRIBUTES.items()
        }
    )


def algorithm_of_config(matmul: Matmul, config: AlgorithmConfig) -> Any:
    """Return an algorithm with this config; None if the library refuses one of its values."""
    library, algo = _library(matmul), Algo()
    types = matmul.operation.types
    if library.status("MatmulAlgoInit", matmul.handle, *types, config.id, byref(algo)) != STATUS_SUCCESS:
        return None
    for name, attribute in api.CONFIG_ATTRIBUTES.items():
        value, default = getattr(config, name), getattr(AlgorithmConfig, name, None)
        # Fields at their defaults are not set; the id is read-only.
        changed = value != default and name != "id"
        if changed and not library.try_attribute("MatmulAlgoConfig", byref(algo), attribute, value):
            return None
    return algo


def capabilities(matmul: Matmul, algorithm_id: int) -> Capabilities | None:
    """Return the capabilities of this id; None if the library does not support it for these types."""
    library, algo = _library(matmul), Algo()
    types = matmul.operation.types
    if library.status("MatmulAlgoInit", matmul.handle, *types, algorithm_id, byref(algo)) != STATUS_SUCCESS:
        return None

    def number(attribute: Attribute) -> int:
        return library.number("MatmulAlgoCap", algo, attribute)

    return Capabilities(
        tiles=tuple(library.numbers("MatmulAlgoCap", algo, api.CAP_TILE_IDS)) or (0,),
        stages=tuple(library.numbers("MatmulAlgoCap", algo, api.CAP_STAGES_IDS)) or (0,),
        splits=number(api.CAP_SPLITK_SUPPORT) != 0,
        reductions=number(api.CAP_REDUCTION_SCHEME_MASK) & matmul.operation.reductions,
        swizzles=number(api.CAP_CTA_SWIZZLING_SUPPORT) != 0,
        most_custom=min(number(api.CAP_CUSTOM_OPTION_MAX), _MOST_CUSTOM),
    )


def algorithm_ids(matmul: Matmul) -> list[int]:
    """Return the ids that the library supports for these types."""
    ids, count = (c_int * _IDS)(), ctypes.c_int()
    types = matmul.operation.types
    status = matmul.library.status("MatmulAlgoGetIds", matmul.handle, *types, _IDS, ids, byref(count))
    return list(ids[: count.value]) if status == STATUS_SUCCESS else []


def neighbours(config: AlgorithmConfig, able: Capabilities) -> Iterator[AlgorithmConfig]:
    """Yield configs that differ from `config` in one field, taking the fields in turn.

    Split-K and its reduction scheme change together. Tiles come in the order of their distance in the library's list,
    which is sorted by size.
    """
    of_fields = (
        [replace(config, cluster=cluster) for cluster in _CLUSTERS],
        [replace(config, swizzle=swizzle) for swizzle in ((0, 1) if able.swizzles else ())],
        [replace(config, stages=stages) for stages in able.stages],
        [replace(config, custom=custom) for custom in range(able.most_custom + 1)],
        [replace(config, tile=tile) for tile in _by_distance(able.tiles, config.tile)],
        list(_with_splits(config, able)),
        [replace(config, inner_shape=shape) for shape in _INNER_SHAPES],
    )
    # In turn, so that a field with hundreds of values does not delay the others.
    for turn in itertools.zip_longest(*of_fields):
        yield from (each for each in turn if each is not None and each != config)


def _configs(matmul: Matmul, known: Sequence[Algorithm]) -> Iterator[AlgorithmConfig]:
    """Yield configs to check: in turn one neighbour of each known algorithm and one config of each other id."""
    configs = [config_of(_library(matmul), algorithm.algo) for algorithm in known]
    named = list(dict.fromkeys(config.id for config in configs))
    able = {id_: found for id_ in named if (found := capabilities(matmul, id_)) is not None}
    near = [neighbours(config, able[config.id]) for config in configs if config.id in able]
    others = []
    for id_ in algorithm_ids(matmul):
        if id_ not in able and (found := capabilities(matmul, id_)) is not None:
            others.append(_of_id(id_, found))
    yield from _in_turns([*near, *others])


def _of_id(id_: int, able: Capabilities) -> Iterator[AlgorithmConfig]:
    """Yield configs of an id that the heuristic did not return: every tile, largest first, and number of stages."""
    for tile in reversed(able.tiles):
        for stages in reversed(able.stages):
            yield AlgorithmConfig(id_, tile=tile, stages=stages)


def _with_splits(config: AlgorithmConfig, able: Capabilities) -> Iterator[AlgorithmConfig]:
    yield replace(config, split_k=1, reduction=REDUCTION_NONE)
    if not able.splits:
        return
    schemes = [scheme for scheme in (2, 1, 4) if able.reductions & scheme]
    for splits in _SPLITS:
        for scheme in schemes:
            yield replace(config, split_k=splits, reduction=scheme)


def _by_distance(tiles: Sequence[int], tile: int) -> list[int]:
    """Return the tiles sorted by their distance from `tile` in the list."""
    place = tiles.index(tile) if tile in tiles else len(tiles) // 2
    return [tiles[index] for index in sorted(range(len(tiles)), key=lambda index: abs(index - place))]


def _in_turns(sources: Sequence[Iterator[AlgorithmConfig]]) -> Iterator[AlgorithmConfig]:
    """Yield one config of each source in turn until all sources are exhausted."""
    waiting = list(sources)
    while waiting:
        for source in list(waiting):
            config = next(source, None)
            if config is None:
                waiting.remove(source)
            else:
                yield config


def _library(matmul: Matmul) -> Api:
    """Return the library with the functions that only cuBLASLt has."""
    return cast(Api, matmul.library)
