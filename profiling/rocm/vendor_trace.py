"""Find the vendor library's calls in a trace; return no time rather than a wrong one.

The library's kernels have unknown names, and one call may launch several: a fill, the product, a reduction. So each
call stands between two fences (fence.py), whose names are known; a fence is used only if its place in the trace is
certain (dispatch_match.py). All kernels are launched in one stream, so the kernels between two fences are the call, and
PyTorch's setup work lies outside. Missing or foreign kernels are recognised by these conditions:

- kernels of one stream run one after another, so overlapping kernels are not all of that stream;
- `dispatch_id`, if the trace has it, counts every launch: a gap is a dispatch that the profiler lost;
- all calls launch the same kernels. A sequence that more than half of the calls have is taken as a complete call. If a
  call lacks some of these kernels, the profiler lost them; with any other difference no call is timed.

These conditions cannot reveal a kernel that the profiler never writes, in any call, in a trace without `dispatch_id`
(rocprofv3 6.2 and legacy rocprof).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from genkern.gemm.records import Dispatch
from genkern.profiling.rocm.dispatch_match import LogEntry, place_dispatches
from genkern.profiling.rocm.kernel_trace import KernelTrace
from genkern.timing.libraries import VENDOR

# Tensile's names have hundreds of characters; number of characters shown of each.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class VendorTimes:
    """Times of the vendor library's turns.

    turns_us: for each entry of the launch log, the time of the last call of a library turn in microseconds (the sum
        over its kernels); None for other entries, and if it is not certain
    message: one line with the kernels of a call, or why there is no time at all
    """

    turns_us: tuple[float | None, ...]
    message: str


def vendor_times(entries: Sequence[LogEntry], trace: KernelTrace, name: str = VENDOR) -> VendorTimes:
    """Find the turns of a library call in a trace.

    Its entries log two symbols, the fences before and after each call.
    """
    placed = place_dispatches(entries, trace.dispatches)
    turns = [
        [_between(trace.dispatches, *fences) for fences in zip(own[::2], own[1::2], strict=True)]
        if entry.config == name and entry.finished
        else []
        for entry, own in zip(entries, placed, strict=True)
    ]
    calls = [call for turn in turns for call in turn]
    found = [_symbols(call) for call in calls if call is not None]
    unusable_rows = trace.invalid_rows + trace.truncated_rows
    whole, reason = _call_of(found, len(calls), unusable_rows)
    if reason:
        return VendorTimes((None,) * len(entries), f"the vendor library is not timed: {reason}")
    turns_us = tuple(_time_us(turn[-1], whole) if turn else None for turn in turns)
    return VendorTimes(turns_us, f"{found.count(whole)} of {len(calls)} calls complete: {_shown(whole)}")


def _between(dispatches: Sequence[Dispatch], before: int | None, after: int | None) -> tuple[Dispatch, ...] | None:
    """Return the kernels between two fences, in order; None if some are lost or foreign."""
    if before is None or after is None:
        return None
    # The neighbours of the fences are included: a kernel that overlaps a fence was not launched into its stream.
    neighbourhood = dispatches[max(0, before - 1) : after + 2]
    if any(first.end_ns > second.start_ns for first, second in itertools.pairwise(neighbourhood)):
        return None
    numbers = [dispatch.dispatch_id for dispatch in dispatches[before : after + 1]]
    known = [number for number in numbers if number is not None]
    if known and numbers != list(range(known[0], known[0] + len(numbers))):
        return None
    return tuple(dispatches[before + 1 : after])


def _call_of(found: Sequence[tuple[str, ...]], calls: int, unusable_rows: int) -> tuple[tuple[str, ...], str]:
    """Return the symbols of one complete call and "", or () and the reason why they are unknown.

    `found`: the symbols of the calls seen, of `calls` made.
    """
    if not calls:
        return (), "none of its turns was finished"
    counts = Counter(found)
    whole, count = counts.most_common(1)[0] if found else ((), 0)
    if 2 * count <= calls:
        return (), f"the trace has only {count} complete and equal calls of {calls}"
    if not whole:
        return (), "the trace has no kernel of its calls"
    other = next((symbols for symbols in counts if not _is_part(symbols, whole)), None)
    if other is not None:
        return (), f"its calls differ: {_shown(whole)} and {_shown(other)}"
    if unusable_rows >= count:
        # One kernel of each call could be among these rows.
        return (), f"{unusable_rows} rows of the trace cannot be used, which could hide a kernel of each call"
    return whole, ""


def _is_part(symbols: Sequence[str], whole: Iterable[str]) -> bool:
    """Return True if `symbols` is `whole`, or `whole` without some of its elements."""
    left = iter(whole)
    return all(symbol in left for symbol in symbols)


def _symbols(call: Iterable[Dispatch]) -> tuple[str, ...]:
    return tuple(dispatch.symbol for dispatch in call)


def _time_us(call: Sequence[Dispatch] | None, whole: Sequence[str]) -> float | None:
    if call is None or _symbols(call) != whole:
        return None
    return sum(dispatch.duration_ns for dispatch in call) / 1000


def _shown(symbols: Iterable[str]) -> str:
    shown = (symbol if len(symbol) <= _SHOWN_CHARACTERS else f"{symbol[:_SHOWN_CHARACTERS]}..." for symbol in symbols)
    return " + ".join(" ".join(symbol.split()) for symbol in shown) or "nothing"
