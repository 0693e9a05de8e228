"""Candidates as a farm hands them out: those that share their binaries together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from genkern.gemm.records import Candidate


def alone(candidates: Iterable[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Each candidate as the only one with its binaries."""
    return ((candidate,) for candidate in candidates)
