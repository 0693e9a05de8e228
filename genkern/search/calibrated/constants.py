"""The predictor's constants of a GPU: what is shipped, or in its place what `genkern calibrate` has fitted there.

They are those of the model that orders the GPU's configs: `Rates` where the GPU has them (`genkern.search.rates`), else
`Constants` (`genkern.search.predict`). A model that was learned on top of the predictor (`genkern.search.guided`) sees
the shipped ones alone: it was learned with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass

from genkern.gemm.gpu import Rates
from genkern.gemm.gpus import Gpu


@dataclass(frozen=True)
class Constants:
    """What the predictor counts with beside the figures of a GPU without rates. Times in microseconds, bytes of one
    unit and clock.

    `matrix_efficiency` is the share of the stated peak that dense kernels sustain before power limits the clock, and
    `memory_efficiency` that of the stated bandwidth (BabelStream: 0.80 to 0.93 on HBM parts). `latency_us` is from
    issuing a load that misses L2 to its use; longer through Infinity Fabric. `kernel_us` is from first to last
    timestamp of an empty kernel, `gap_us` from the end of one kernel to the start of the next in the same stream.
    """

    matrix_efficiency: float = 0.85
    memory_efficiency: float = 0.88
    l2_bytes_per_clock: float = 48.0
    shared_bytes_per_clock: float = 128.0
    latency_us: float = 0.7
    kernel_us: float = 2.0
    gap_us: float = 1.0


# What one of the predictor's models counts with.
Counted = Constants | Rates
Range = tuple[float, float]

# NVIDIA's are an H200's, chosen as predict.py says; an SM gets 48 bytes of L2 a clock there. AMD's are scaled from
# documents, not measured: L2 hands a compute unit a line of 64 bytes a clock (CDNA 3 white paper). Shared memory has 32
# banks of 4 bytes on every target of the table.
_SHIPPED = {"nvidia": Constants(), "amd": Constants(l2_bytes_per_clock=64.0, latency_us=1.0)}
_LAUNCHES: Mapping[str, Range] = {"kernel_us": (0.2, 12.0), "gap_us": (0.1, 12.0)}
# Those that a fit may move, from the least to the most: of rates all but the ratio of two instructions' cycles.
_FREE: Mapping[type[Counted], Mapping[str, Range]] = {
    Constants: {
        "matrix_efficiency": (0.2, 1.0),
        "memory_efficiency": (0.3, 1.0),
        "l2_bytes_per_clock": (8.0, 256.0),
        "shared_bytes_per_clock": (32.0, 256.0),
        "latency_us": (0.1, 5.0),
        **_LAUNCHES,
    },
    Rates: {
        "matrix_share": (0.2, 1.0),
        "memory_share": (0.3, 1.0),
        "l2_tb_per_s": (0.5, 60.0),
        "last_level_tb_per_s": (0.2, 40.0),
        "load_bytes_per_clock": (16.0, 256.0),
        "lds_bytes_per_clock": (32.0, 256.0),
        "latency_us": (0.05, 5.0),
        "step_us": (0.01, 2.0),
        "start_us": (0.03, 5.0),
        **_LAUNCHES,
    },
}
_given: ContextVar[Counted | None] = ContextVar("given constants", default=None)


def ranges(gpu: Gpu) -> dict[str, Range]:
    """By the name of each constant that is fitted on such a GPU the least and the most that it may be.

    What is shipped is in its range, also that of a person's own file of GPUs.
    """
    shipped = shipped_constants(gpu)
    return {
        name: (min(least, getattr(shipped, name)), max(most, getattr(shipped, name)))
        for name, (least, most) in _FREE[type(shipped)].items()
    }


def free_of(constants: Counted) -> dict[str, float]:
    """By name those that a fit may move."""
    return {name: getattr(constants, name) for name in _FREE[type(constants)]}


def shipped_constants(gpu: Gpu) -> Counted:
    """Those that genkern comes with, or a person's own file of GPUs."""
    return gpu.rates or _SHIPPED[gpu.vendor]


def constants_for(gpu: Gpu) -> Counted:
    """Those that the predictor uses: what `counting_with` gave, what was fitted on this GPU, else the shipped ones.

    Raises ResultsError for a damaged file of fitted ones, or one of another model than the GPU's.
    """
    if (given := _given.get()) is not None:
        return given
    return _known(gpu)


def constants_without_rates(gpu: Gpu) -> Constants:
    """`constants_for` a GPU that has no rates."""
    found = constants_for(gpu)
    assert isinstance(found, Constants), f"{gpu.name} has rates"
    return found


def rates_for(gpu: Gpu) -> Rates:
    """`constants_for` a GPU that has rates."""
    found = constants_for(gpu)
    assert isinstance(found, Rates), f"{gpu.name} has no rates"
    return found


@contextlib.contextmanager
def counting_with(constants: Counted) -> Iterator[None]:
    """While it lasts, the predictor counts with these, in this thread; it is asked of GPUs whose model has such."""
    token = _given.set(constants)
    try:
        yield
    finally:
        _given.reset(token)


def _known(gpu: Gpu) -> Counted:
    # Asked several times for each of thousands of configs; `Gpu` has many fields to hash.
    key = gpu.arch, gpu.name, gpu.compute_units, gpu.rates
    if key not in _fitted_here:
        from genkern.search.calibrated.store import read_calibration

        found = read_calibration(gpu)
        _fitted_here[key] = shipped_constants(gpu) if found is None else found.constants
    return _fitted_here[key]


_fitted_here: dict[tuple[str, str, int, Rates | None], Counted] = {}


def forget_calibrations() -> None:
    """Read the files anew from now on: one was written."""
    _fitted_here.clear()
