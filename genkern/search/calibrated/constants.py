"""The predictor's constants of a GPU: what is shipped, or in its place what `genkern calibrate` has fitted there.

A model that was learned on top of the predictor (`genkern.search.guided`) sees the shipped ones alone: it was learned
with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, fields

from genkern.gemm.gpus import Gpu


def _fitted(default: float, least: float, most: float) -> float:
    """A constant with the range within which a fit may move it."""
    value: float = field(default=default, metadata={"range": (least, most)})
    return value


@dataclass(frozen=True)
class Constants:
    """What the predictor counts with beside a GPU's figures. Times in microseconds, bytes of one unit and clock.

    `matrix_efficiency` is the share of the stated peak that dense kernels sustain before power limits the clock, and
    `memory_efficiency` that of the stated bandwidth (BabelStream: 0.80 to 0.93 on HBM parts). `latency_us` is from
    issuing a load that misses L2 to its use; longer through Infinity Fabric. `kernel_us` is from first to last
    timestamp of an empty kernel, `gap_us` from the end of one kernel to the start of the next in the same stream.
    """

    matrix_efficiency: float = _fitted(0.85, 0.2, 1.0)
    memory_efficiency: float = _fitted(0.88, 0.3, 1.0)
    l2_bytes_per_clock: float = _fitted(48.0, 8.0, 256.0)
    shared_bytes_per_clock: float = _fitted(128.0, 32.0, 256.0)
    latency_us: float = _fitted(0.7, 0.1, 5.0)
    kernel_us: float = _fitted(2.0, 0.2, 12.0)
    gap_us: float = _fitted(1.0, 0.1, 12.0)


# NVIDIA's are an H200's, chosen as predict.py says; an SM gets 48 bytes of L2 a clock there. AMD's are scaled from
# documents, not measured: L2 hands a compute unit a line of 64 bytes a clock (CDNA 3 white paper). Shared memory has 32
# banks of 4 bytes on every target of the table.
_SHIPPED = {"nvidia": Constants(), "amd": Constants(l2_bytes_per_clock=64.0, latency_us=1.0)}
_given: ContextVar[Constants | None] = ContextVar("given constants", default=None)


def ranges() -> dict[str, tuple[float, float]]:
    """By the name of a constant the least and the most that it may be."""
    return {each.name: each.metadata["range"] for each in fields(Constants)}


def shipped_constants(gpu: Gpu) -> Constants:
    """Those that genkern comes with."""
    return _SHIPPED[gpu.vendor]


def constants_for(gpu: Gpu) -> Constants:
    """Those that the predictor uses: what `counting_with` gave, what was fitted on this GPU, else the shipped ones.

    Raises ResultsError for a damaged file of fitted ones.
    """
    if (given := _given.get()) is not None:
        return given
    return _known(gpu)


@contextlib.contextmanager
def counting_with(constants: Constants) -> Iterator[None]:
    """While it lasts, the predictor counts with these, in this thread."""
    token = _given.set(constants)
    try:
        yield
    finally:
        _given.reset(token)


def _known(gpu: Gpu) -> Constants:
    # Asked several times for each of thousands of configs; `Gpu` has many fields to hash.
    key = gpu.arch, gpu.name, gpu.compute_units
    if key not in _fitted_here:
        from genkern.search.calibrated.store import read_calibration

        found = read_calibration(gpu)
        _fitted_here[key] = shipped_constants(gpu) if found is None else found.constants
    return _fitted_here[key]


_fitted_here: dict[tuple[str, str, int], Constants] = {}


def forget_calibrations() -> None:
    """Read the files anew from now on: one was written."""
    _fitted_here.clear()
