"""Names of the measured process's timers, which also label their times."""

from __future__ import annotations

# Timers by vendor, the default first: a graph of calls, calls between two events, kernels recorded by CUPTI.
TIMERS = {"nvidia": ("cudagraph", "cudaevents", "cupti"), "amd": ("hipgraph", "hipevents")}
# Variable that selects the GPUs that a process sees.
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def usual_timer(vendor: str) -> str:
    """Return the name of the default timer."""
    return TIMERS[vendor][0]


def vendor_of(time_source: str) -> str:
    """Return the vendor whose GPUs a timer measures. Raises KeyError for an unknown name."""
    for vendor, names in TIMERS.items():
        if time_source in names:
            return vendor
    raise KeyError(time_source)


def visible_variable(time_source: str) -> str:
    """Return the environment variable that selects the GPUs that a process sees, for the vendor of this timer."""
    return _VISIBLE[vendor_of(time_source)]
