"""Tests of profiling/rocm/dispatch_match.py."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import ProfilerError
from genkern.gemm.records import Dispatch
from genkern.profiling.rocm.dispatch_match import LogEntry, match_dispatches, parse_clock, parse_launch_log


def _entry(number: int, symbols: Sequence[str], calls: int) -> LogEntry:
    return LogEntry(f"config{number}", tuple(symbols), calls, finished=True)


def _execute(entries: Sequence[LogEntry]) -> tuple[list[Dispatch], list[tuple[float, ...]]]:
    """Run the log: every dispatch, each with a duration of its own, and the true time of each call."""
    dispatches: list[Dispatch] = []
    truth = []
    for entry in entries:
        calls = []
        for _ in range(entry.calls):
            first = len(dispatches)
            for symbol in entry.symbols:
                number = len(dispatches)
                dispatches.append(Dispatch(symbol, 1000 * number + 1, 1000 * number + 2 + 2**number % 997))
            calls.append(sum(d.duration_ns for d in dispatches[first:]) / 1000)
        truth.append(tuple(calls))
    return dispatches, truth


_ENTRIES = st.lists(
    st.tuples(st.sampled_from(["A", "B", "C", "AR", "BR"]), st.integers(1, 4)), min_size=1, max_size=8
).map(lambda pairs: [_entry(number, symbols, calls) for number, (symbols, calls) in enumerate(pairs)])


@given(_ENTRIES)
def test_a_whole_trace_gives_every_config_its_own_times(entries: list[LogEntry]) -> None:
    """Without losses nothing is uncertain, also where neighbours share their symbol."""
    dispatches, truth = _execute(entries)
    assert match_dispatches(entries, dispatches) == truth


@given(_ENTRIES, st.data())
@settings(max_examples=repeats(120, 400))
def test_lost_dispatches_never_give_a_config_the_times_of_another(entries: list[LogEntry], data: st.DataObject) -> None:
    """Whatever is dropped: each entry has exactly its own times, or None."""
    dispatches, truth = _execute(entries)
    kept = data.draw(st.lists(st.booleans(), min_size=len(dispatches), max_size=len(dispatches)))
    matched = match_dispatches(entries, [d for d, keep in zip(dispatches, kept, strict=True) if keep])
    for found, true in zip(matched, truth, strict=True):
        assert found is None or found == true


def _placements(symbols: Sequence[str], launches: Sequence[str], first: int = 0) -> list[list[int]]:
    """Every way in which `symbols` can be a subsequence of `launches`, by trial."""
    if not symbols:
        return [[]]
    return [
        [position, *rest]
        for position in range(first, len(launches))
        if launches[position] == symbols[0]
        for rest in _placements(symbols[1:], launches, position + 1)
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["A", "B", "AB"]), st.integers(1, 2)), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=repeats(100, 300), deadline=None)
def test_exactly_the_certain_entries_are_reported(pairs: list[tuple[str, int]], data: st.DataObject) -> None:
    """An entry has times if and only if every possible placement of the trace gives it the same dispatches."""
    entries = [_entry(number, symbols, calls) for number, (symbols, calls) in enumerate(pairs)]
    dispatches, _ = _execute(entries)
    kept = data.draw(st.lists(st.booleans(), min_size=len(dispatches), max_size=len(dispatches)))
    seen = [d for d, keep in zip(dispatches, kept, strict=True) if keep]
    placements = _placements([d.symbol for d in seen], [d.symbol for d in dispatches])
    matched = match_dispatches(entries, seen)
    first = 0
    for entry, found in zip(entries, matched, strict=True):
        own = range(first, first + entry.calls * len(entry.symbols))
        first = own.stop
        assignments = {tuple(p.index(i) if i in p else None for i in own) for p in placements}
        certain = len(assignments) == 1 and None not in next(iter(assignments))
        assert certain == (found is not None)


def test_a_loss_costs_one_config_when_neighbours_differ() -> None:
    """A dispatch lost among alternating symbols leaves every later config certain."""
    entries = [_entry(number, "AB"[number % 2], 5) for number in range(100)]
    dispatches, truth = _execute(entries)
    matched = match_dispatches(entries, dispatches[:52] + dispatches[53:])
    assert [number for number, times in enumerate(matched) if times is None] == [10]
    assert matched[11:] == truth[11:]


def test_fills_and_copies_are_ignored() -> None:
    """Dispatches of symbols that no config has may lie anywhere."""
    entries = [_entry(0, "AR", 2)]
    dispatches, truth = _execute(entries)
    fill = Dispatch("__amd_rocclr_fillBufferAligned", 1, 2)
    mixed = [other for dispatch in dispatches for other in (fill, dispatch, fill)]
    assert match_dispatches(entries, mixed) == truth


def test_a_dispatch_that_the_log_cannot_explain_makes_all_uncertain() -> None:
    """One execution too many of a logged symbol means that the order cannot be trusted."""
    entries = [_entry(0, "A", 2), _entry(1, "B", 1)]
    dispatches, _ = _execute(entries)
    assert match_dispatches(entries, [*dispatches, Dispatch("A", 10**6, 10**6 + 1)]) == [None, None]


def test_what_a_crashed_config_launched_is_not_anothers() -> None:
    """The interrupted entry's dispatches stay its own, and it has no times itself."""
    finished, crashed = _entry(0, "A", 2), LogEntry("crashed", ("B",), 2)
    dispatches, truth = _execute([finished, crashed])
    assert match_dispatches([finished, crashed], dispatches[:3]) == [truth[0], None]
    same_symbol = LogEntry("crashed", ("A",), 2)
    dispatches, _ = _execute([finished, same_symbol])
    assert match_dispatches([finished, same_symbol], dispatches[:3]) == [None, None]


def _log(*lines: object) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_the_log_becomes_one_entry_per_turn() -> None:
    """Start and end lines of one turn are one entry; a start alone is an interrupted turn."""
    text = _log(
        {"config": "a", "start": True},
        {"config": "a", "symbols": ["k", "r"], "calls": 3},
        {"config": "b", "start": True},
        {"config": "b", "error": "out of LDS"},
        {"config": "a", "start": True, "symbols": ["k"], "calls": 2},
    )
    a, b, again = parse_launch_log(text)
    assert a == LogEntry("a", ("k", "r"), 3, finished=True)
    assert b == LogEntry("b", error="out of LDS")
    assert again == LogEntry("a", ("k",), 2)
    assert [entry.interrupted for entry in (a, b, again)] == [False, False, True]


def test_readings_of_the_clock_are_no_turns() -> None:
    """They stand between turns, and are read by the round that follows; without a clock there are none."""
    turn = [{"config": "a", "start": True}, {"config": "a", "symbols": ["k"], "calls": 3}]
    readings = [{"clock_mhz": mhz, "round": number} for number, mhz in enumerate((2100, None, 1999.5, 0))]
    text = _log(*(line for reading in readings for line in (reading, *turn)))
    assert parse_launch_log(text) == [LogEntry("a", ("k",), 3, finished=True)] * 4
    assert parse_clock(text) == {0: 2100.0, 2: 1999.5}
    assert parse_clock(text[: text.index('"round": 2') + 3]) == {0: 2100.0}
    assert parse_clock(_log(*turn)) == {}


def test_a_half_written_last_line_is_left_out() -> None:
    """Cut anywhere in its last line, the log says that this turn was interrupted."""
    text = _log({"config": "a", "start": True}, {"config": "a", "symbols": ["k"], "calls": 3})
    for length in range(text.index("\n") + 1, len(text)):
        assert parse_launch_log(text[:length]) == [LogEntry("a")]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"start": true}',
        '{"config": "a"}',
        '{"config": "a", "symbols": ["k"]}',
        '{"config": "a", "symbols": "k", "calls": 3}',
        '{"config": "a", "symbols": [""], "calls": 3}',
        '{"config": "a", "symbols": ["k"], "calls": -1}',
        '{"config": "a", "symbols": ["k"], "calls": true}',
    ],
)
def test_a_bad_line_is_refused_with_its_number(line: str) -> None:
    """A whole line that the format does not allow raises ProfilerError with file and line."""
    with pytest.raises(ProfilerError, match="log 1:2"):
        parse_launch_log(_log({"config": "a", "start": True}) + line + "\n", "log 1")
