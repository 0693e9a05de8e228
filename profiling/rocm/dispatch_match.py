"""Match the dispatches of a trace to the configs in the launch log, and only if the match is certain.

GROUP_SIZE_M and SPLIT_K are run-time arguments, so several configs launch the same symbol and the name alone does not
identify a config. The order does: the log lists all launches, and a trace is a subsequence of them, since profilers
lose dispatches but do not invent any. A subsequence can often be placed in several ways. Its leftmost and its rightmost
placement bound all of them, so a dispatch that both put at the same launch certainly belongs there, and all other
dispatches are left unmatched.

The launch log has one JSON object per line, in launch order: `{"config": NAME, "start": true}` before the first launch
of a config, then `{"config": NAME, "symbols": [SYMBOL, ...], "calls": N}` once all its launches have completed on the
device, or `{"config": NAME, "error": TEXT}`. `symbols` are the kernels of one call, in order. The start line may have
`symbols` and `calls` as well, which tell what a config may have launched before it failed. In the finals,
`{"clock_mhz": MHZ, "round": N}` precedes each round, numbered from 0, and follows the last; MHZ is null if the clock
cannot be read. `{"bug": TEXT, "details": TRACEBACK}` is the last line of a process that a bug of genkern ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from genkern.errors import BugError, ProfilerError
from genkern.gemm.records import Dispatch


@dataclass(frozen=True)
class LogEntry:
    """One turn of a config in the launch log.

    config: name of the config
    symbols: kernels of one call
    calls: number of calls
    finished: the log has the line that ends the turn
    error: the launch error; if there is none and the turn is not finished, the process ended during it
    call: the library algorithm that took this place
    """

    config: str
    symbols: tuple[str, ...] = ()
    calls: int = 0
    finished: bool = False
    error: str | None = None
    call: str = ""

    @property
    def interrupted(self) -> bool:
        return not self.finished and self.error is None


def parse_launch_log(text: str, source: str = "launch log") -> list[LogEntry]:
    """Parse a launch log. A last line without newline was cut off by the process's death and is skipped.

    Raises ProfilerError, naming `source` and the line, for a malformed line, and BugError for a log that ends in a bug.
    """
    entries: list[LogEntry] = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        if not line.strip():
            continue
        values = _values(line, f"{source}:{number}")
        if "clock_mhz" in values:
            continue
        if "bug" in values:
            raise BugError(str(values["bug"]), str(values.get("details", "")))
        entry, starts = _entry(values, f"{source}:{number}")
        if not starts and entries and entries[-1].interrupted and entries[-1].config == entry.config:
            begun = entries.pop()
            entry = replace(entry, symbols=entry.symbols or begun.symbols, calls=entry.calls or begun.calls)
        entries.append(entry)
    return entries


def parse_clock(text: str, source: str = "launch log") -> dict[int, float]:
    """Return the clock readings of a launch log in MHz, by the round that follows each reading.

    Raises ProfilerError as `parse_launch_log` does.
    """
    readings: dict[int, float] = {}
    for number, line in enumerate(text.split("\n")[:-1], 1):
        values = _values(line, f"{source}:{number}") if line.strip() else {}
        mhz, before = values.get("clock_mhz"), values.get("round")
        if isinstance(mhz, int | float) and isinstance(before, int) and mhz > 0:
            readings[before] = float(mhz)
    return readings


def match_dispatches(entries: Sequence[LogEntry], dispatches: Sequence[Dispatch]) -> list[tuple[float, ...] | None]:
    """Return, for each entry, the time of each of its calls in microseconds (the sum over the call's kernels).

    `dispatches` are in order of start. An entry is None if it is not finished, or if one of its dispatches is missing
    or could belong to another entry. Symbols that no entry has (fills, copies) are ignored. All are None if the trace
    holds a dispatch of a logged symbol that the log cannot explain.
    """
    durations: list[tuple[float, ...] | None] = []
    for entry, own in zip(entries, place_dispatches(entries, dispatches), strict=True):
        kernels = len(entry.symbols)
        times_ns = [dispatches[index].duration_ns for index in own if index is not None]
        if not entry.finished or not own or len(times_ns) < len(own):
            durations.append(None)
        else:
            durations.append(tuple(sum(times_ns[i : i + kernels]) / 1000 for i in range(0, len(own), kernels)))
    return durations


def place_dispatches(entries: Sequence[LogEntry], dispatches: Sequence[Dispatch]) -> list[tuple[int | None, ...]]:
    """Return, for each entry, the index in `dispatches` of each of its launches.

    The index is None for a launch without a certain match.

    An entry has `calls` times `symbols` launches, in that order. Nothing is certain in a trace with a dispatch of a
    logged symbol that the log cannot explain.
    """
    launches = [symbol for entry in entries for _ in range(entry.calls) for symbol in entry.symbols]
    known = set(launches)
    seen = [index for index, dispatch in enumerate(dispatches) if dispatch.symbol in known]
    symbols = [dispatches[index].symbol for index in seen]
    leftmost = _place(symbols, launches)
    rightmost = _place(symbols[::-1], launches[::-1])
    certain: dict[int, int] = {}
    if leftmost is not None and rightmost is not None:
        for index, left, right in zip(seen, leftmost, reversed(rightmost), strict=True):
            if left == len(launches) - 1 - right:
                certain[left] = index
    placed = []
    first = 0
    for entry in entries:
        last = first + entry.calls * len(entry.symbols)
        placed.append(tuple(certain.get(position) for position in range(first, last)))
        first = last
    return placed


def _place(symbols: Sequence[str], launches: Sequence[str]) -> list[int] | None:
    """Return the leftmost placement of `symbols` as a subsequence of `launches`; None if there is none."""
    positions = []
    position = -1
    for symbol in symbols:
        position += 1
        while position < len(launches) and launches[position] != symbol:
            position += 1
        if position == len(launches):
            return None
        positions.append(position)
    return positions


def _values(line: str, where: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError:
        raise ProfilerError(f"{where}: {line[:80]!r} is not JSON: the measured process wrote a bad log") from None
    if not isinstance(values, dict) or not (
        isinstance(values.get("config"), str) or values.keys() & {"clock_mhz", "bug"}
    ):
        raise ProfilerError(f"{where}: expected an object with the name of a config, not {line[:80]!r}")
    return values


def _entry(values: dict[str, Any], where: str) -> tuple[LogEntry, bool]:
    config, symbols, calls = values["config"], values.get("symbols", []), values.get("calls", 0)
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) and symbol for symbol in symbols):
        raise ProfilerError(f"{where}: symbols of {config} are {symbols!r}, not a list of names")
    if isinstance(calls, bool) or not isinstance(calls, int) or calls < 0:
        raise ProfilerError(f"{where}: calls of {config} is {calls!r}, not a count")
    entry = LogEntry(config, tuple(symbols), calls)
    if values.get("start") is True:
        return entry, True
    if "error" in values:
        return replace(entry, error=str(values["error"])), False
    if not symbols or not calls:
        raise ProfilerError(f"{where}: {config} needs start, error, or symbols and calls")
    return replace(entry, finished=True, call=str(values.get("call", ""))), False
