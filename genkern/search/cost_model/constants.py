"""The cost model's constants of a GPU: the shipped ones, or those that `genkern calibrate` fitted.

They belong to the model that orders the GPU's configs: `Rates` if the GPU has rates (`genkern.search.rates`), else
`Constants` (`genkern.search.cost_model.predict`). A model that was learned on top of the cost model
(`genkern.search.guided`) always uses the shipped constants, with which it was learned.
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
    """Constants of the cost model for GPUs without rates.

    matrix_efficiency: share of the stated peak that dense kernels sustain before power limits the clock
    memory_efficiency: share of the stated bandwidth that is reached (BabelStream: 0.80 to 0.93 on HBM parts)
    l2_bytes_per_clock: bytes per clock that a unit gets from L2
    shared_bytes_per_clock: bytes per clock that a unit reads from shared memory
    latency_us: microseconds from issuing a load that misses L2 to its use; longer through Infinity Fabric
    kernel_us: microseconds from first to last timestamp of an empty kernel
    gap_us: microseconds from the end of a kernel to the start of the next one in the same stream
    """

    matrix_efficiency: float = 0.85
    memory_efficiency: float = 0.88
    l2_bytes_per_clock: float = 48.0
    shared_bytes_per_clock: float = 128.0
    latency_us: float = 0.7
    kernel_us: float = 2.0
    gap_us: float = 1.0


# The constants of either of the two models.
Counted = Constants | Rates
Range = tuple[float, float]

# NVIDIA's are an H200's, fitted as predict.py describes; an SM gets 48 bytes per clock from L2 there. AMD's are scaled
# from documents, not measured: L2 delivers a line of 64 bytes per clock to a compute unit (CDNA 3 white paper). Shared
# memory has 32 banks of 4 bytes on every GPU of the table.
_SHIPPED = {"nvidia": Constants(), "amd": Constants(l2_bytes_per_clock=64.0, latency_us=1.0)}
_LAUNCHES: Mapping[str, Range] = {"kernel_us": (0.2, 12.0), "gap_us": (0.1, 12.0)}
# Constants that a fit may change, with their ranges: all except `Rates.packed_matrix_ratio`.
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
    """Return the smallest and the largest value of each constant that is fitted on such a GPU, by name.

    Shipped values are within the range, including those of a user's own file of GPUs.
    """
    shipped = shipped_constants(gpu)
    return {
        name: (min(least, getattr(shipped, name)), max(most, getattr(shipped, name)))
        for name, (least, most) in _FREE[type(shipped)].items()
    }


def free_of(constants: Counted) -> dict[str, float]:
    """Return the constants that a fit may change, by name."""
    return {name: getattr(constants, name) for name in _FREE[type(constants)]}


def shipped_constants(gpu: Gpu) -> Counted:
    """Return the constants in genkern or in a user's own file of GPUs."""
    return gpu.rates or _SHIPPED[gpu.vendor]


def constants_for(gpu: Gpu) -> Counted:
    """Return the constants in use: of `using_constants`, else the ones fitted on this GPU, else the shipped ones.

    Raises ResultsError if the file of fitted constants is damaged, or belongs to another model than the GPU's.
    """
    if (given := _given.get()) is not None:
        return given
    return _known(gpu)


def constants_without_rates(gpu: Gpu) -> Constants:
    """Return `constants_for` a GPU without rates."""
    found = constants_for(gpu)
    assert isinstance(found, Constants), f"{gpu.name} has rates"
    return found


def rates_for(gpu: Gpu) -> Rates:
    """Return `constants_for` a GPU with rates."""
    found = constants_for(gpu)
    assert isinstance(found, Rates), f"{gpu.name} has no rates"
    return found


@contextlib.contextmanager
def using_constants(constants: Counted) -> Iterator[None]:
    """Context in which the cost model uses these constants, in this thread, for GPUs whose model has such constants."""
    token = _given.set(constants)
    try:
        yield
    finally:
        _given.reset(token)


def _known(gpu: Gpu) -> Counted:
    # Called several times for each of thousands of configs: hashing these four fields is faster than hashing `gpu`.
    key = gpu.arch, gpu.name, gpu.compute_units, gpu.rates
    if key not in _fitted_here:
        from genkern.search.cost_model.calibration_file import read_calibration

        found = read_calibration(gpu)
        _fitted_here[key] = shipped_constants(gpu) if found is None else found.constants
    return _fitted_here[key]


_fitted_here: dict[tuple[str, str, int, Rates | None], Counted] = {}


def forget_calibrations() -> None:
    """Drop the constants that were read from files, so that the files are read again: call this after writing one."""
    _fitted_here.clear()
