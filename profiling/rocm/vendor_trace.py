"""Which dispatches of a trace are the vendor library's calls; no time rather than a wrong one.

The library's kernels have names that nobody knows, and one call may be several: a fill, the product, a reduction. So
each call stands between two fences (fence.py), whose names are known and whose places in the trace are certain or not
used at all (dispatch_match.py). All kernels are launched in one stream, so what lies between the two is the call, and
what PyTorch does to set up lies outside. That something is missing there, or does not belong there, shows in this:

- kernels of one stream run one after another: any that overlap are not all of that stream;
- `dispatch_id`, where the trace has it, counts every launch: a gap is a dispatch that the profiler lost;
- all calls launch the same kernels: what most of them are made of is a call, a call that lacks some of these lost them,
  and with any other difference nothing is known of any call.

What these cannot show: a kernel that the profiler never writes, in no call, in a trace without `dispatch_id`
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

# Tensile's names have hundreds of characters; what is shown of each.
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class VendorTimes:
    """`turns_us` has one time per entry of the launch log: that of the last call of a turn of the vendor library.

    In microseconds, the sum over the call's kernels; None for another's turn, and where it is not certain. `message`
    says on one line what a call is made of, or why there is no time at all.
    """

    turns_us: tuple[float | None, ...]
    message: str


def vendor_times(entries: Sequence[LogEntry], trace: KernelTrace, name: str = VENDOR) -> VendorTimes:
    """Find the turns of a library's call in a trace. Its entries log the fences: two symbols, before and after each."""
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
    return VendorTimes(turns_us, f"{found.count(whole)} of {len(calls)} calls seen whole: {_shown(whole)}")


def _between(dispatches: Sequence[Dispatch], before: int | None, after: int | None) -> tuple[Dispatch, ...] | None:
    """The kernels between two fences, in order; None where something is lost or does not belong there."""
    if before is None or after is None:
        return None
    # With the neighbours of the fences: what runs beside a fence was not launched into its stream.
    neighbourhood = dispatches[max(0, before - 1) : after + 2]
    if any(first.end_ns > second.start_ns for first, second in itertools.pairwise(neighbourhood)):
        return None
    numbers = [dispatch.dispatch_id for dispatch in dispatches[before : after + 1]]
    known = [number for number in numbers if number is not None]
    if known and numbers != list(range(known[0], known[0] + len(numbers))):
        return None
    return tuple(dispatches[before + 1 : after])


def _call_of(found: Sequence[tuple[str, ...]], calls: int, unusable_rows: int) -> tuple[tuple[str, ...], str]:
    """The symbols of one whole call, or else the reason why they are not known. `found` are those of `calls` seen."""
    if not calls:
        return (), "no turn of it was finished"
    counts = Counter(found)
    whole, count = counts.most_common(1)[0] if found else ((), 0)
    if 2 * count <= calls:
        return (), f"the trace has no more than {count} of its {calls} calls in one piece and alike"
    if not whole:
        return (), "the trace has no kernel of it"
    other = next((symbols for symbols in counts if not _is_part(symbols, whole)), None)
    if other is not None:
        return (), f"its calls differ: {_shown(whole)}, but also {_shown(other)}"
    if unusable_rows >= count:
        # One of each call's kernels could be among them.
        return (), f"{unusable_rows} rows of the trace cannot be used, as many as it has calls"
    return whole, ""


def _is_part(symbols: Sequence[str], whole: Iterable[str]) -> bool:
    """Whether `symbols` is `whole` or what is left of it when some are lost."""
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
