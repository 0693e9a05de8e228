"""Profiler: the interface for taking kernel times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from genkern.gemm.records import Candidate, Measurement
from genkern.timing.session import Session


class Racer(Protocol):
    """A racer: a Candidate, or anything else that a measured process can identify by `request`.

    Measurements have its `name`.
    """

    @property
    def name(self) -> str: ...
    @property
    def request(self) -> dict[str, Any]: ...


class ExclusiveDevice:
    """Mixin for a profiler that alone uses its device."""

    def alone(self) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return nullcontext()


class Profiler(Protocol):
    """One way to get kernel times. `time_source` labels every time that it returns."""

    time_source: str

    def start(self) -> None:
        """Start the measured process without waiting for it, so that it is ready when it is first needed."""

    def alone(self) -> AbstractContextManager[None]:
        """Return a context manager during which no other process of this run uses the device."""

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate, in any order.

        `units`: candidates grouped by shared binaries. They arrive as the farm compiles them, and may depend on the
            Measurements yielded before.
        """

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Time the finalists, and the vendor library if possible, against each other, round-robin in shuffled order.

        PyTorch's own call of the library is named VENDOR; other library calls have their names in results
        (genkern.timing.libraries).
        """

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """Time these finalists and library calls again, in rounds that do not influence the choice.

        A call that cannot be timed any more is missing or has no time.
        """

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """Return the names of the `most` fastest under load, or of the first `most` if that cannot be determined."""

    def close(self) -> None:
        """Stop every process that this profiler started."""


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
