"""What fences and kernels in a trace say of the vendor library, and what not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats
from trace_formats import HEADERS, csv_text, write_rocpd

from genkern.gemm.records import Dispatch
from genkern.profiling.launch_job import FENCE
from genkern.profiling.rocm.dispatch_match import LogEntry, match_dispatches
from genkern.profiling.rocm.kernel_trace import KernelTrace, parse_kernel_trace
from genkern.profiling.rocm.rocpd import read_rocpd
from genkern.profiling.rocm.vendor_trace import VendorTimes, vendor_times
from genkern.timing.libraries import VENDOR

_CALL = ("__amd_rocclr_fillBufferAligned", "Cijk_Ailk_Bljk_MT256x128", "Cijk_PostGSU")
_SET_UP = ("at::native::distribution_normal", *_CALL, "__amd_rocclr_copyBuffer")
_CALLS = 2


class _Device:
    """Runs kernels one after another and keeps the log; each takes another time."""

    def __init__(self, call: Sequence[str] = _CALL) -> None:
        self.call = tuple(call)
        self.entries: list[LogEntry] = []
        self.dispatches: list[Dispatch] = []
        self.truth: list[float | None] = []

    def launch(self, *symbols: str) -> int:
        """The time in ns of these kernels together."""
        first = len(self.dispatches)
        for symbol in symbols:
            number = len(self.dispatches)
            self.dispatches.append(
                Dispatch(symbol, 1000 * number + 1, 1000 * number + 2 + 7 * number % 997, dispatch_id=number + 1)
            )
        return sum(dispatch.duration_ns for dispatch in self.dispatches[first:])

    def config(self, symbol: str) -> None:
        for _ in range(_CALLS):
            self.launch(symbol)
        self.entries.append(LogEntry(f"config_{symbol}", (symbol,), _CALLS, finished=True))
        self.truth.append(None)

    def vendor(self) -> None:
        for _ in range(_CALLS):
            self.launch(FENCE)
            time_ns = self.launch(*self.call)
            self.launch(FENCE)
        self.entries.append(LogEntry(VENDOR, (FENCE, FENCE), _CALLS, finished=True))
        self.truth.append(time_ns / 1000)

    def places(self, symbol: str) -> list[int]:
        """Where its dispatches inside the calls are."""
        fences = [place for place, dispatch in enumerate(self.dispatches) if dispatch.symbol == FENCE]
        inside = [range(before + 1, after) for before, after in zip(fences[::2], fences[1::2], strict=True)]
        return [place for call in inside for place in call if self.dispatches[place].symbol == symbol]

    def times(self, lost: Sequence[int] = (), ids: bool = True, **rows: int) -> VendorTimes:
        """What a trace says that lacks the dispatches at the places `lost`, with or without dispatch ids."""
        kept = [dispatch for place, dispatch in enumerate(self.dispatches) if place not in lost]
        if not ids:
            kept = [replace(dispatch, dispatch_id=None) for dispatch in kept]
        return vendor_times(self.entries, KernelTrace(tuple(kept), **rows))


def _finals(rounds: int = 4, call: Sequence[str] = _CALL) -> _Device:
    device = _Device(call)
    for _ in range(rounds):
        device.launch("at::native::vectorized_elementwise_kernel")
        device.config("tiled_a")
        if len(device.entries) == 1:
            device.launch(*_SET_UP)
        device.vendor()
        device.launch("__amd_rocclr_fillBufferAligned")
        device.config("tiled_b")
    return device


@pytest.fixture
def device() -> _Device:
    return _finals()


def _nothing(device: _Device, times: VendorTimes) -> bool:
    return times.turns_us == (None,) * len(device.entries) and times.message.startswith(
        "the vendor library is not timed"
    )


@pytest.mark.parametrize("version", [*HEADERS, "db"])
def test_every_format_gives_the_time_of_each_turns_last_call(device: _Device, version: str, tmp_path: Path) -> None:
    """The sum over the kernels between its fences, whatever their names; rows in any order; nothing of the set-up."""
    shuffled = device.dispatches[30:] + device.dispatches[:30]
    rows = [(d.symbol, d.start_ns, d.end_ns) for d in shuffled]
    ids = [d.dispatch_id for d in shuffled if d.dispatch_id is not None]
    if version == "db":
        write_rocpd(str(tmp_path / "trace.db"), rows, dispatch_ids=ids)
        trace = read_rocpd(tmp_path / "trace.db")
    else:
        trace = parse_kernel_trace(csv_text(version, rows, ids))
    times = vendor_times(device.entries, trace)
    assert times.turns_us == tuple(device.truth)
    assert times.message.startswith(f"8 of 8 calls complete: {_CALL[0]} + {_CALL[1]}")


@pytest.mark.parametrize("call", [("Cijk_A",), ("Cijk_A", "Cijk_A"), ("fill", "Cijk_A", "fill", "reduce")])
@pytest.mark.parametrize("ids", [True, False])
def test_a_call_may_be_any_kernels(call: tuple[str, ...], ids: bool) -> None:
    """One, the same one twice, or several."""
    device = _finals(call=call)
    assert device.times(ids=ids).turns_us == tuple(device.truth)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("symbol", _CALL)
def test_a_call_that_lost_a_kernel_has_no_time(device: _Device, symbol: str, ids: bool) -> None:
    """That turn alone; the others keep theirs."""
    last_call_of_turn_2 = device.places(symbol)[3]
    times = device.times(lost=[last_call_of_turn_2], ids=ids)
    expected = list(device.truth)
    expected[4] = None
    assert times.turns_us == tuple(expected)
    assert "7 of 8" in times.message


@pytest.mark.parametrize("ids", [True, False])
def test_a_lost_fence_costs_its_turn_alone(device: _Device, ids: bool) -> None:
    """Its calls cannot be told from one another, those of other turns can."""
    fences = [place for place, d in enumerate(device.dispatches) if d.symbol == FENCE]
    for lost in fences[4:8]:
        times = device.times(lost=[lost], ids=ids)
        assert [us for us in times.turns_us if us is not None] == [device.truth[1], device.truth[7], device.truth[10]]


def test_a_kernel_lost_in_every_call_is_missed_where_launches_are_numbered(device: _Device) -> None:
    """Then no call is whole, so there is no time."""
    assert _nothing(device, device.times(lost=device.places(_CALL[2])))


def test_a_kernel_lost_in_most_calls_leaves_no_time(device: _Device) -> None:
    """Where launches are not numbered, the calls that have it show that the others are not whole."""
    assert _nothing(device, times := device.times(lost=device.places(_CALL[2])[1:], ids=False))
    assert "differ" in times.message


def test_unusable_rows_may_be_a_kernel_of_every_call(device: _Device) -> None:
    """As many as there are whole calls leave no time; fewer cannot be one of each."""
    lost = device.places(_CALL[0])
    times = device.times(lost=lost, ids=False, invalid_rows=len(lost))
    assert _nothing(device, times)
    assert "rows" in times.message
    assert device.times(ids=False, invalid_rows=len(lost) - 1).turns_us == tuple(device.truth)


@pytest.mark.parametrize("ids", [True, False])
def test_a_kernel_that_only_some_calls_have_leaves_no_time(ids: bool) -> None:
    """Another kernel for some copies, a fill of somebody else's: nobody knows what a call is then."""
    device = _finals(rounds=3)
    device.call = (*_CALL, "at::native::fill")
    device.vendor()
    assert _nothing(device, times := device.times(ids=ids))
    assert "at::native::fill" in times.message


@pytest.mark.parametrize("shift_ns", [-1500, 1500])
def test_kernels_that_overlap_are_not_one_stream(device: _Device, shift_ns: int) -> None:
    """A call with one has no time, since the sum would count twice, or somebody else's kernel."""
    place = device.places(_CALL[1])[5]
    moved = device.dispatches[place]
    moved = replace(moved, start_ns=moved.start_ns + shift_ns, end_ns=moved.end_ns + shift_ns, dispatch_id=None)
    others = [
        replace(d, dispatch_id=None, end_ns=d.start_ns + 900) for n, d in enumerate(device.dispatches) if n != place
    ]
    trace = KernelTrace(tuple(sorted([*others, moved], key=lambda d: d.start_ns)))
    times = vendor_times(device.entries, trace)
    assert times.turns_us[7] is None
    assert "7 of 8" in times.message


def test_a_kernel_beside_a_fence_is_not_of_the_stream(device: _Device) -> None:
    """What began before the first fence and ends after it could be the library's, on a stream of its own."""
    first = next(n for n, d in enumerate(device.dispatches) if d.symbol == FENCE)
    last_fence_of_turn = first + 2 * (len(_CALL) + 2) - 1
    beside = device.dispatches[last_fence_of_turn + 1]
    device.dispatches[last_fence_of_turn + 1] = replace(
        beside, start_ns=device.dispatches[last_fence_of_turn].end_ns - 1
    )
    times = device.times(ids=False)
    assert times.turns_us[1] is None
    assert times.turns_us[4] == device.truth[4]


def test_launches_out_of_their_order_have_no_time(device: _Device) -> None:
    """Numbers that do not follow one another, in a call that lacks nothing."""
    first, second = device.places(_CALL[0])[1], device.places(_CALL[1])[1]
    one, other = device.dispatches[first], device.dispatches[second]
    device.dispatches[first] = replace(one, dispatch_id=other.dispatch_id)
    device.dispatches[second] = replace(other, dispatch_id=one.dispatch_id)
    assert device.times().turns_us[1] is None


def test_a_library_without_kernels_has_no_time() -> None:
    """Nothing between the fences, in every call: it does not run on this device, or the profiler does not see it."""
    device = _finals(call=())
    assert _nothing(device, times := device.times())
    assert "no kernel" in times.message


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("lossy", [3, 4])
def test_more_than_half_of_the_calls_have_to_be_whole(device: _Device, lossy: int, ids: bool) -> None:
    """Three of eight that lost a kernel are left out; with four, nothing is said."""
    places = [device.places(_CALL[call % 3])[2 * call] for call in range(lossy)]
    times = device.times(lost=places, ids=ids)
    assert _nothing(device, times) == (lossy == 4)


def test_half_a_trace_has_no_time(device: _Device) -> None:
    """Where no more than half of the calls are there, nothing is said of them."""
    half = range(len(device.dispatches) // 2 - 2, len(device.dispatches))
    assert _nothing(device, device.times(lost=half, truncated_rows=1))


def test_a_trace_that_the_log_cannot_explain_has_no_time(device: _Device) -> None:
    """One fence more than was launched: then no place in the trace is certain."""
    device.launch(FENCE)
    assert _nothing(device, device.times())


def test_a_turn_that_was_not_finished_counts_for_nothing(device: _Device) -> None:
    """The process died in it: no time for it, and its calls are not held against the others."""
    device.vendor()
    device.entries[-1] = replace(device.entries[-1], finished=False)
    times = device.times()
    assert times.turns_us == (*device.truth[:-1], None)
    assert "8 of 8" in times.message


def test_without_a_finished_turn_there_is_no_time() -> None:
    """A process that died in the first one says so."""
    device = _Device()
    device.vendor()
    device.entries = [replace(device.entries[0], finished=False)]
    assert _nothing(device, times := device.times())
    assert "none of its turns" in times.message


def _losses(device: _Device, data: st.DataObject) -> list[int]:
    return data.draw(st.lists(st.integers(0, len(device.dispatches) - 1), max_size=25, unique=True))


@given(st.integers(1, 5), st.sampled_from([_CALL, ("Cijk_A",), ("Cijk_A", "Cijk_A", "fill")]), st.data())
@settings(max_examples=repeats(100, 300), deadline=None)
def test_whatever_is_lost_no_time_is_wrong(rounds: int, call: tuple[str, ...], data: st.DataObject) -> None:
    """With numbered launches, and without while any call is whole: each turn has its own time, or none."""
    device = _finals(rounds, call)
    lost = _losses(device, data)
    for found, true in zip(device.times(lost).turns_us, device.truth, strict=True):
        assert found in (None, true)
    fences = [place for place, d in enumerate(device.dispatches) if d.symbol == FENCE]
    whole = any(
        not set(lost) & set(range(first - 1, last + 2)) for first, last in zip(fences[::2], fences[1::2], strict=True)
    )
    if whole:
        for found, true in zip(device.times(lost, ids=False).turns_us, device.truth, strict=True):
            assert found in (None, true)


@given(st.integers(1, 4), st.data())
@settings(max_examples=repeats(40, 100), deadline=None)
def test_configs_have_the_times_that_they_have_without_the_library(rounds: int, data: st.DataObject) -> None:
    """Fences and the library's kernels change no config's attribution but to make more of it certain."""
    device = _finals(rounds)
    lost = _losses(device, data)
    kept = [d for place, d in enumerate(device.dispatches) if place not in lost]
    with_library = match_dispatches(device.entries, kept)
    configs = [entry for entry in device.entries if entry.config != VENDOR]
    without = match_dispatches(configs, [d for d in kept if d.symbol.startswith("tiled")])
    together = [times for entry, times in zip(device.entries, with_library, strict=True) if entry.config != VENDOR]
    assert all(a == b or b is None for a, b in itertools.zip_longest(together, without))
