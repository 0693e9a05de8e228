"""The model's inputs as columns: an array per parameter, over many configs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from genkern.gemm.config import Config
from genkern.gemm.parameter import CORE, Value
from genkern.gemm.records import Resources
from genkern.kernels.catalogue import traits_of

Numbers = npt.NDArray[np.float64]
Columns = Mapping[str, Numbers]
_CORE = tuple(parameter.name for parameter in CORE)
_OTHERS = ("waves_per_eu", "matrix_instr_nonkdim")
_OF_FORM = ("edge_m", "edge_n", "vector", "in_one_kernel")
# Properties of a binary, by the fields of Resources; 0 without a binary.
_OF_BINARY = ("registers", "shared_bytes", "scratch_bytes")


def columns_of(configs: Sequence[Config], needs: Sequence[Resources] | None = None) -> dict[str, Numbers]:
    """Return arrays [configs] by name: parameters, terms of the form's cost (`genkern.kernels.contract.cost`), and the
    resources of the binaries in `needs` [configs]."""
    columns = {name: np.array([getattr(config, name) for config in configs], dtype=np.float64) for name in _CORE}
    # Thousands of configs have few combinations of the other parameters.
    kinds: dict[object, int] = {}
    places = np.array([kinds.setdefault((config.family, config.others), len(kinds)) for config in configs], dtype=int)
    seen = np.array([_of_kind(*kind) for kind in kinds], dtype=np.float64)  # type: ignore[misc]
    for number, name in enumerate((*_OTHERS, *_OF_FORM)):
        columns[name] = seen[places, number]
    for name in _OF_BINARY:
        said = [0] * len(configs) if needs is None else [getattr(binary, name) or 0 for binary in needs]
        columns[name] = np.array(said, dtype=np.float64)
    return columns


@lru_cache(maxsize=4096)
def _of_kind(family: str, others: tuple[tuple[str, Value], ...]) -> tuple[float, ...]:
    config = Config(family, 64, 64, 64, others=others)
    cost = traits_of(config).cost
    of_form = (*cost.edges, cost.vector, cost.reduces == "semaphore")
    return *(float(getattr(config, name)) for name in _OTHERS), *map(float, of_form)


def each(values: Numbers, of: Callable[[int], int]) -> Numbers:
    """Return `of(value)` for each value [configs]; it is called once per distinct value."""
    distinct, places = np.unique(values, return_inverse=True)
    said: Numbers = np.array([of(int(value)) for value in distinct], dtype=np.float64)[places]
    return said
