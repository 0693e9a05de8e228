"""Parse kernel traces: the CSV of every rocprofv3 since ROCm 6.2, and of legacy rocprof, into dispatches.

Header names by version (rocprofiler-sdk `generateCSV.cpp`, rocprofiler `tblextr.py`):

- rocprofv3 6.2 (16 columns), 6.3 and 6.4 (18), builds between 6.4 and 7.0 (19), 7.0 and later (22), and `rocpd convert
  -f csv` (Guid first, other letter case): Kernel_Name, Start_Timestamp, End_Timestamp;
- rocprof: KernelName, BeginNs, EndNs; without `--stats` the times are present only with `--timestamp on`.

Columns are therefore found by name, case-insensitively, never by position.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from genkern.errors import ProfilerError
from genkern.gemm.records import Dispatch

_NAME = ("kernel_name", "kernelname")
_START = ("start_timestamp", "beginns")
_END = ("end_timestamp", "endns")
# In the order of Dispatch's fields. Legacy rocprof's Index counts the rows in the file, not the launches.
_OPTIONAL = ("grid_size_x", "workgroup_size_x", "dispatch_id")
_NAME_SUFFIXES = (" [clone .kd]", " (.kd)", ".kd")


@dataclass(frozen=True)
class KernelTrace:
    """Dispatches in order of start, and the number of skipped rows.

    dispatches: the dispatches
    invalid_rows: rows without usable times (zero, or end not after start) or with another number of cells than the
        header
    truncated_rows: 1 if the last line was cut off because the process died while writing
    """

    dispatches: tuple[Dispatch, ...]
    invalid_rows: int = 0
    truncated_rows: int = 0


def clean_symbol(name: str) -> str:
    """Return the kernel's symbol without the marks that the legacy tools add to it."""
    name = name.strip()
    for suffix in _NAME_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def times_are_valid(start_ns: int, end_ns: int) -> bool:
    """Return False for the zero or reversed times that some runtimes report; a kernel takes more than 0 ns."""
    return 0 < start_ns < end_ns


def parse_kernel_trace(text: str, source: str = "kernel trace") -> KernelTrace:
    """Parse a kernel trace. Raises ProfilerError (one line, naming `source`) if the text is not one."""
    lines = text.split("\n")
    # A complete file ends in a newline, so the last element is empty; otherwise it is a truncated line.
    last = len(lines) - 1 if lines[-1] else -1
    header = [cell.strip().lower() for cell in _cells(lines[0])]
    name, start, end = _columns(header, source)
    optional = [_first(header, (column,)) for column in _OPTIONAL]

    dispatches, invalid, truncated = [], 0, 0
    for number, line in enumerate(lines[1:], 1):
        if not line.strip():
            continue
        cells = _cells(line)
        if number == last and (len(cells) < len(header) or len(header) - 1 in (name, start, end)):
            truncated += 1
            continue
        start_ns, end_ns = _integer(cells, start), _integer(cells, end)
        if len(cells) != len(header) or start_ns is None or end_ns is None or not times_are_valid(start_ns, end_ns):
            invalid += 1
            continue
        values = (_integer(cells, column) for column in optional)
        dispatches.append(Dispatch(clean_symbol(cells[name]), start_ns, end_ns, *values))
    dispatches.sort(key=lambda dispatch: (dispatch.start_ns, dispatch.end_ns))
    return KernelTrace(tuple(dispatches), invalid, truncated)


def _columns(header: list[str], source: str) -> tuple[int, int, int]:
    """Return the positions of name, start and end. Raises ProfilerError that says what the file is instead."""
    if header in ([], [""]):
        raise ProfilerError(f"{source} is empty: the profiler wrote no header; look at its standard error")
    if "counter_name" in header:
        raise ProfilerError(f"{source} holds counters, whose kernels ran one at a time: run with --kernel-trace")
    if {"dispatch_id", "gpu_id", "kernel_name"} <= set(header):
        raise ProfilerError(f"{source} is from rocprofv2, which loses dispatches: use rocprofv3 (ROCm 6.2 or later)")
    name, start, end = (_first(header, names) for names in (_NAME, _START, _END))
    if name is not None and start is None and "index" in header:
        raise ProfilerError(f"{source} has no BeginNs and EndNs: run rocprof with --stats or --timestamp on")
    if name is None or start is None or end is None:
        shown = ",".join(header)[:60]
        raise ProfilerError(
            f"{source} is not a kernel trace (it starts with {shown!r}): expected Kernel_Name, Start_Timestamp, "
            "End_Timestamp (rocprofv3) or KernelName, BeginNs, EndNs (rocprof); check the profiler's version"
        )
    return name, start, end


def _first(header: list[str], names: Sequence[str]) -> int | None:
    return next((header.index(name) for name in names if name in header), None)


def _cells(line: str) -> list[str]:
    """Split one line.

    Each line is parsed alone, so that a quote left open by a dying process does not affect later lines.
    """
    try:
        return next(csv.reader((line.rstrip("\r"),)), [])
    except csv.Error:  # a NUL byte, or a cell of more than 128 KiB
        return []


def _integer(cells: list[str], column: int | None) -> int | None:
    if column is None or column >= len(cells):
        return None
    cell = cells[column].strip()
    return int(cell) if cell.isascii() and cell.isdigit() and len(cell) < 20 else None
