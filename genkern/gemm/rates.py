"""Rates: what a GPU's units, caches and memory are taken to sustain, for the predictor; one record a device.

They are in gpus.yaml, by architecture and device, each with its source there. A file of one's own in the same form
(GENKERN_GPU_FILES), or `dataclasses.replace(gpu, rates=...)`, puts measured ones in their place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from genkern.errors import InputError

# What no device goes below or above: shares of a stated peak, and what else is a share.
_SHARES = ("matrix_share", "memory_share", "workgroup_share")


@dataclass(frozen=True)
class Rates:
    """What kernels get of the device.

    `matrix_share` and `memory_share`: of the stated peaks, what dense kernels and copies sustain.
    `workgroup_share`: of the memory's bandwidth, what a single workgroup can ask for.
    `l2_tb_per_s` and `last_level_tb_per_s`: all L2 caches together, and the cache behind them (MALL, Infinity Cache).
    `load_bytes_per_clock` and `lds_bytes_per_clock`: of one CU, from L2, and to and from LDS.
    `packed_matrix_ratio`: the peak for two operands of 4 bits over that for 8 bits.
    `latency_us`: from a load to the first use of what it brings from memory. `step_us`: barrier, waits and addresses of
    a step along K, for one workgroup. `start_us`: from the start of a workgroup to its first load.
    `kernel_us`: first to last timestamp of an empty kernel. `gap_us`: from a kernel's end to the next one's start.
    """

    matrix_share: float
    memory_share: float
    workgroup_share: float
    l2_tb_per_s: float
    last_level_tb_per_s: float
    load_bytes_per_clock: float
    lds_bytes_per_clock: float
    packed_matrix_ratio: float
    latency_us: float
    step_us: float
    start_us: float
    kernel_us: float
    gap_us: float

    def __post_init__(self) -> None:
        """Raises InputError for rates that no device has."""
        for each in fields(self):
            value = getattr(self, each.name)
            if not math.isfinite(value) or value <= 0 or (each.name in _SHARES and value > 1):
                raise InputError(f"rates: {each.name} = {value} is no {'share' if each.name in _SHARES else 'rate'}")
