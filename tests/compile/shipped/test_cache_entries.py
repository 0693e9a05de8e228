"""Tests of genkern.compile.cache_entries: what lies in a cache, and which of it goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.cache_entries import IN_USE_S, Entry, entries, entries_to_remove
from genkern.gemm.records import Outcome

NOW_S = 1e9
DAY_S = 86_400.0


def entry(number: int, days: float, size: int = 10) -> Entry:
    return Entry(f"{number:064x}", size, NOW_S - days * DAY_S, False)


OLD, MIDDLE, NEW, IN_USE = entry(1, 30), entry(2, 10), entry(3, 1), entry(4, 0.01)


@pytest.mark.parametrize(
    ("most_bytes", "most_days", "going"),
    [
        (None, None, []),
        (40, None, []),
        (39, None, [OLD]),
        (20, None, [OLD, MIDDLE]),
        (0, None, [OLD, MIDDLE, NEW]),
        (None, 5, [OLD, MIDDLE]),
        (None, 0, [OLD, MIDDLE, NEW]),
        # What is too old counts among what makes room.
        (25, 20, [OLD, MIDDLE]),
        (35, 5, [OLD, MIDDLE]),
    ],
)
def test_what_was_not_used_for_longest_goes(
    most_bytes: int | None, most_days: float | None, going: list[Entry]
) -> None:
    """First what is too old, then as much as makes the rest small enough; never what a run may be using."""
    age_s = None if most_days is None else most_days * DAY_S
    assert entries_to_remove([NEW, OLD, IN_USE, MIDDLE], NOW_S, most_bytes, age_s) == going


@given(st.lists(st.tuples(st.floats(0, 40), st.integers(0, 50))), st.integers(0, 500))
def test_no_more_goes_than_must(drawn: list[tuple[float, int]], most: int) -> None:
    """What is left fits, or is in use; with the last that went it would not have fitted."""
    found = [entry(number, days, size) for number, (days, size) in enumerate(drawn)]
    going = entries_to_remove(found, NOW_S, most, None)
    left = [each for each in found if each not in going]
    total = sum(each.size_bytes for each in left)
    assert total <= most or all(NOW_S - each.used_s <= IN_USE_S for each in left)
    assert not going or total + going[-1].size_bytes > most


def test_only_entries_count(hostile_path: Path) -> None:
    """Not what is being stored, nor anything that somebody laid beside them."""
    cache = BinaryCache(hostile_path / "binaries")
    key = "ab" + "0" * 62
    cache.put_failure(Failure(key, Outcome.COMPILE_FAILED, "no"))
    record = cache.path(key) / "genkern.json"
    os.utime(record, (NOW_S, NOW_S))
    for other in (".unborn/half", "ab/notes", f"cd/{key}", "README"):
        (cache.folder / other).mkdir(parents=True)
    (found,) = entries(cache.folder)
    assert (found.key, found.refused, found.used_s) == (key, True, NOW_S)
    assert found.size_bytes >= record.stat().st_size
