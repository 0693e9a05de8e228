"""Profiler: one way to get kernel times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from genkern.gemm.records import Candidate, Measurement
from genkern.timing.session import Session


class Raced(Protocol):
    """What races: a Candidate, or what else a measured process knows by `request`; measurements have its `name`."""

    @property
    def name(self) -> str: ...
    @property
    def request(self) -> dict[str, Any]: ...


class Unshared:
    """A profiler whose device no other one of its run uses."""

    def alone(self) -> AbstractContextManager[None]:
        """As it is."""
        return nullcontext()


class Profiler(Protocol):
    """One way to get kernel times. `time_source` labels every number that it returns."""

    time_source: str

    def start(self) -> None:
        """Start what measures, without waiting for it: the rest would, when it first needs it."""

    def alone(self) -> AbstractContextManager[None]:
        """For the block no other process of this run uses the device."""

    def screen(self, session: Session, units: Iterable[Sequence[Candidate]]) -> Iterator[Measurement]:
        """Yield one Measurement per candidate, in any order. `units` are candidates that share their binaries; they
        come as a farm makes them, and may depend on what was yielded before."""

    def retime(self, session: Session, finalists: Sequence[Candidate]) -> list[Measurement]:
        """Time the finalists, and the vendor library if it can, against each other, round-robin in shuffled order.

        PyTorch's own call of it is named VENDOR, another call of it as results name it (genkern.timing.libraries).
        """

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        """Time these again, and these calls of the finals' libraries, in rounds that chose none of them.

        What cannot be timed any more is missing, or has no time.
        """

    def semifinal(self, session: Session, candidates: Sequence[Candidate], most: int) -> list[str]:
        """Names of the `most` fastest under load, as far as that can be told; else of the first of them."""

    def close(self) -> None:
        """Stop every process that this profiler started."""
