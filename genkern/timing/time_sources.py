"""The names by which a measured process's timers are asked for, and which label their times."""

from __future__ import annotations

# For each vendor's GPUs, the usual one first: a graph of calls, calls between two events, kernels that CUPTI recorded.
TIMERS = {"nvidia": ("cudagraph", "cudaevents", "cupti"), "amd": ("hipgraph", "hipevents")}
# The variable that says which GPUs a process sees.
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


def usual_timer(vendor: str) -> str:
    """The name of the timer to take where nobody chose."""
    return TIMERS[vendor][0]


def vendor_of(time_source: str) -> str:
    """Whose GPUs a timer is for. Raises KeyError for what is no timer's name."""
    for vendor, names in TIMERS.items():
        if time_source in names:
            return vendor
    raise KeyError(time_source)


def visible_variable(time_source: str) -> str:
    """The variable that shows a process the one GPU on which this timer measures."""
    return _VISIBLE[vendor_of(time_source)]
