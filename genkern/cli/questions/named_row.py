"""The results rows that a user means by a size or by a place in a file, for `why` and `repro`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import genkern
from genkern.cli.report import format_text
from genkern.cli.target import device_option
from genkern.errors import InputError, ResultsError
from genkern.file_io import shown_path
from genkern.files.file_kind import read_results
from genkern.gemm.gpus import NOT_PRESENT, DetectedDevice, detect_devices, gpu_for_device, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.result.result import Result
from genkern.runtime.bundles.shipped_bundles import shipped_bundles
from genkern.runtime.calls.configuration import CONFIG, configuration
from genkern.timing.trust_rank import TrustRank, trust_rank

# The results folder of a checkout; an installed genkern has none.
SHIPPED_RESULTS = Path(genkern.__file__).resolve().parent.parent / "results"
_SIZE = re.compile(r"([0-9]{1,10})[x,]([0-9]{1,10})[x,]([0-9]{1,10})")
_PLACE = re.compile(r"(.+):([1-9][0-9]{0,8})")
WHAT_HELP = "a size MxNxK, such as 64x6144x4096, or a row of a results file as FILE:LINE"
_MOST_LISTED = 8


@dataclass(frozen=True)
class Size:
    """A size without a number format."""

    M: int
    N: int
    K: int

    def __str__(self) -> str:
        return f"{self.M}x{self.N}x{self.K}"

    def is_of(self, problem: GemmProblem) -> bool:
        return (problem.M, problem.N, problem.K) == (self.M, self.N, self.K)


@dataclass(frozen=True)
class Place:
    """A line of a results file, counted from 1."""

    path: str
    line: int


@dataclass(frozen=True)
class FoundRow:
    """A row, and the file that holds it."""

    path: str
    row: Result

    @property
    def place(self) -> str:
        return f"{near_path(self.path)}:{self.row.line}"

    @property
    def text(self) -> str:
        """The row in a few words: size, format, device, place."""
        row = self.row
        return f"{row.problem.size} {format_text(row.problem)} on {row.device or row.arch or 'an unknown GPU'}"


def near_path(path: str) -> str:
    """Return a path as messages show it: relative to the current folder if it lies below it."""
    relative = os.path.relpath(path)
    return shown_path(path if relative.startswith("..") else relative)


def read_what(text: str) -> Size | Place:
    """Parse a size or a row's place. Raises InputError."""
    if size := _SIZE.fullmatch(text.strip()):
        found = Size(*map(int, size.groups()))
        GemmProblem(found.M, found.N, found.K)  # raises InputError for numbers out of range
        return found
    if (place := _PLACE.fullmatch(text)) and not os.path.exists(text):
        return Place(place[1], int(place[2]))
    if os.path.isfile(text):
        raise InputError(f"{shown_path(text)} has several rows: name one by its line, {shown_path(text)}:2")
    raise InputError(f"{text[:60]!r} is neither a size such as 64x6144x4096 nor a row such as results.yaml:7")


def add_filters(group: argparse._ArgumentGroup) -> None:
    """Add options that choose among the rows of one size: --device, --arch, --op, --dtype_a, --bias_vector."""
    group.add_argument("--device", metavar="NAME", help="only rows of this GPU model, such as h200")
    group.add_argument("--arch", metavar="ARCH", help="only rows of this architecture")
    group.add_argument("--op", metavar="OP", help="only rows of this number format")
    group.add_argument("--dtype_a", metavar="TYPE", help="only rows with this type of A")


def rows_at(place: Place) -> list[FoundRow]:
    """Return the row at a place. Raises ResultsError if the file has no row that begins there."""
    rows = read_results(place.path)
    if found := [row for row in rows if row.line == place.line]:
        return [FoundRow(place.path, found[0])]
    lines = [row.line for row in rows]
    near = min(lines, key=lambda line: abs(line - place.line), default=None)
    hint = f": the nearest row begins in line {near}" if near is not None else ": it has no rows"
    raise ResultsError(f"{shown_path(place.path)} has no row that begins in line {place.line}{hint}")


def rows_of(size: Size, paths: Iterable[str], options: argparse.Namespace) -> list[FoundRow]:
    """Return the rows of a size in results files that the filters of `add_filters` keep."""
    return [each for each in layer_rows(size, paths, options) if size.is_of(each.row.problem)]


def fits(row: Result, options: argparse.Namespace) -> bool:
    """Return True if the filters of `add_filters` keep the row."""
    gpu = device_option(options.device, options.arch)
    if gpu is not None and (row.arch != gpu.arch or not row.device or _model(row) != gpu.name):
        return False
    if options.arch is not None and row.arch not in ("", options.arch):
        return False
    return options.op in (None, row.problem.op) and options.dtype_a in (None, row.problem.dtype_a)


def _model(row: Result) -> str:
    return gpu_for_device(row.device.removesuffix(NOT_PRESENT), row.arch).name


def on_this_gpu(rows: Sequence[FoundRow]) -> list[FoundRow]:
    """Return the rows of this machine's GPU; all rows if it has none, or if no row is of its GPU."""
    devices = {(device.arch, gpu_for_device(device.name, device.arch).name) for device in _known_devices()}
    mine = [each for each in rows if each.row.arch and (each.row.arch, _model(each.row)) in devices]
    return mine or list(rows)


def _known_devices() -> list[DetectedDevice]:
    return [device for device in detect_devices() if device.arch in known_archs()]


def best_of_each(rows: Sequence[FoundRow]) -> list[tuple[FoundRow, list[FoundRow]]]:
    """Return one row for each problem and device, the most trusted, then the fastest one; and the others of each."""
    groups: dict[tuple[GemmProblem, str, str, int | None], list[FoundRow]] = {}
    for each in rows:
        row = each.row
        groups.setdefault((row.problem, row.arch, row.device, row.compute_units), []).append(each)
    ordered = (sorted(group, key=_trust) for group in groups.values())
    return [(group[0], group[1:]) for group in ordered]


def _trust(found: FoundRow) -> tuple[TrustRank, float]:
    row = found.row
    return trust_rank(row.choice, row.proved_by, row.time_source), row.duration_us or float("inf")


def shipped_files() -> list[str]:
    """Return the results files of a checkout, without rows of older kernels; none in an installed genkern."""
    return sorted(str(path) for path in SHIPPED_RESULTS.glob("nvidia_*/*.yaml")) + sorted(
        str(path) for path in SHIPPED_RESULTS.glob("amd_*/*.yaml")
    )


def layer_rows(size: Size, paths: Iterable[str], options: argparse.Namespace) -> list[FoundRow]:
    """Return the rows with the size's N and K, whatever their M, that the filters keep."""
    found = (FoundRow(path, row) for path in paths for row in read_results(path))
    of_layer = (each for each in found if (each.row.problem.N, each.row.problem.K) == (size.N, size.K))
    return [each for each in of_layer if fits(each.row, options)]


def usual_paths() -> list[str]:
    """Return what GENKERN_CONFIG names, else the bundles, else the results that genkern was released with.

    Raises InputError if there is none of these, or if GENKERN_CONFIG names nothing that exists.
    """
    if os.environ.get(CONFIG, "").strip():
        asked = configuration(os.environ)
        named = [*asked.paths, *(path for paths in asked.own_paths.values() for path in paths)]
        if found := [path for path in dict.fromkeys(named) if Path(path).exists()]:
            return found
        raise InputError(f"{CONFIG} names nothing that exists (genkern doctor says more): give --results or --bundle")
    if found := shipped_bundles() or shipped_files():
        return found
    raise InputError(f"which results? Give --results FILE or --bundle FILE, or set {CONFIG}")


def require_one(rows: Sequence[FoundRow], what: str) -> FoundRow:
    """Return the most trusted row of the only format and device.

    Raises InputError, which lists the rows, if there are several formats or devices, and ResultsError if there is none.
    """
    if not rows:
        raise ResultsError(f"no row of {what} in these results: name a file by --results, or tune the size")
    best = [found for found, _ in best_of_each(rows)]
    if len(best) > 1:
        listed = "; ".join(f"{each.place} ({each.text})" for each in best[:_MOST_LISTED])
        raise InputError(f"{what} has rows of {len(best)} formats or devices: name one of them: {listed}")
    return best[0]
