"""Results in which the library won: they are packed without a compiler, and found without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from winner_factory import results_text, winner

from genkern.files.file_kind import read_results
from genkern.gemm.problem import GemmProblem
from genkern.packing.rows import rows_of
from genkern.runtime.bundles.bundle import Bundle, write_bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.table import Device

H200 = Device("sm_90", "NVIDIA H200", 132)


@dataclass
class Driver:
    """Says of every stream that it is in the graph capture with this number."""

    capturing: int = 0

    def capture(self, stream: int) -> int:
        return self.capturing


@dataclass
class Card:
    """All that finding a winner, and watching, ask of a GPU. CPU tensors are on it."""

    index: int = -1
    identity: Device = H200
    driver: Driver = field(default_factory=Driver)

    def stream(self) -> int:
        return 7


def library_rows(path: Path, sizes: Sequence[int], us: float = 10.0, **changes: object) -> Path:
    """Results for these M, with N = K = 4096, measured on an H200."""
    said = {"arch": H200.arch, "device": H200.name, "time_source": "cudagraph", "vendor_us": us - 1, "us": us}
    winners = [winner(m, **{**said, "choice": "vendor", **changes}) for m in sizes]  # type: ignore[arg-type]
    path.write_text(results_text(winners, path.name, H200.compute_units))
    return path


def library_bundle(results: Path, bundle: Path) -> None:
    """What `genkern pack` makes of such results."""
    rows = rows_of(read_results(str(results)), None, False)
    write_bundle(str(bundle), Contents(tuple(row.winner for row in rows.packed), {}), {})


def sizes_in(bundles: Sequence[Bundle]) -> list[int]:
    return sorted(winner.problem.M for bundle in bundles for winner in bundle.winners)


def problem(m: int, **changes: object) -> GemmProblem:
    return GemmProblem(m, 4096, 4096, **changes)  # type: ignore[arg-type]
