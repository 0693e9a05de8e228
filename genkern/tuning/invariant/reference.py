"""The reference of an order of sums: its simplest kernel, with which other kernels are compared bit by bit."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Resources
from genkern.kernels.catalogue import sums_of
from genkern.kernels.legality import legal
from genkern.search.cost_model.predict import predict_us
from genkern.tuning.invariant.group import usually_slower

# The simplest family: no ring of stages, no copy engine, no clusters. The tiles are the smallest for each matrix
# instruction.
_FAMILY = "tiled"
_TILES = ((64, 64), (64, 16), (16, 64), (16, 16))
_DEPTHS = (64, 128, 32, 256, 16)
_MOST_PARTS = 64


def reference_of(problem: GemmProblem, order: str, gpu: Gpu) -> Config | None:
    """Return a legal config that has the order: its only one, or one of the family `tiled`; None if there is none."""
    named = alone(order)
    configs = _plainest(_parts(order)) if named is None else [named.with_values(SPLIT_K=_parts(order))]
    for config in configs:
        if sums_of(problem, config, gpu.arch) == order and not legal(problem, config, gpu):
            return config
    return None


def alone(order: str) -> Config | None:
    """Return the only config that has the order; None if the order is not bound to one config."""
    name = order.partition("; as ")[2].partition(";")[0]
    return Config.parse(name) if name else None


def slower(problem: GemmProblem, order: str, best: Config, gpu: Gpu) -> float:
    """Return the assumed time of an order relative to the time of `best`.

    If only one config has the order, the cost model predicts its time (infinite if it is not legal). Otherwise a search
    is expected to find a good config, and `usually_slower` is returned.
    """
    if alone(order) is None:
        return usually_slower(problem, order)
    if (config := reference_of(problem, order, gpu)) is None:
        return math.inf
    one, other = (predict_us(problem, each, Resources(), gpu) for each in (config, best))
    return max(1.0, one / other) if other < math.inf else math.inf


def _parts(order: str) -> int:
    """Return the number of parts of K in an order."""
    said = re.search(r"(?:^|; )([0-9]{1,5}) parts\b", order)
    return int(said[1]) if said else 1


def _plainest(parts: int) -> Iterator[Config]:
    for depth, (rows, columns) in itertools.product(_DEPTHS, _TILES) if parts <= _MOST_PARTS else ():
        yield Config(_FAMILY, rows, columns, depth, SPLIT_K=parts, num_warps=4, num_stages=2)
