"""Tests of benchmarks/checking/damaged_files.py: a few damaged files of each kind, and that damage is seen."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from long_tests import long_only

from benchmarks.checking import damaged_files as module
from benchmarks.checking.damage import changed_bytes, changed_lines, changed_value
from benchmarks.checking.damaged_files import (
    Tally,
    Undisturbed,
    judge_journals,
    judge_results,
    judged,
    lines_of,
    of_journal,
)
from genkern.errors import ResultsError
from genkern.journal.journal_line import entry_of, journal_line


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Undisturbed:
    return module.undisturbed(tmp_path_factory.mktemp("whole"), cache_dir)


@long_only("runs the command for each damaged journal")
def test_journals_are_refused_or_gone_on_from(whole: Undisturbed) -> None:
    """No traceback, no other results, one line; what is read of other types is shown."""
    tally = Tally()
    judge_journals(whole, 24, random.Random(2), tally)
    assert tally.bad == []
    assert sum(tally.counts["journals"].values()) == 18
    assert tally.counts["journals"]["refused"] > 5


def test_results_are_refused_or_added_to(whole: Undisturbed) -> None:
    """In both kinds of file; rows that are whole stay to the letter."""
    tally = Tally()
    judge_results(whole, 16, random.Random(3), tally)
    assert tally.bad == []
    assert len(list(lines_of(tally))) == 1


def test_what_must_not_be_is_counted(whole: Undisturbed) -> None:
    """Lines of an earlier release do not say what stands before them: sizes that have changed places are believed."""
    entries = [entry_of(line) for line in whole.journal.splitlines()]
    one, other = (
        number for number, entry in enumerate(entries) if entry["fact"] == "problem" and entry["value"]["N"] == 128
    )
    entries[one], entries[other] = entries[other], entries[one]
    lines = (journal_line(entry["fact"], entry["value"], entry.get("problem")) for entry in entries)
    assert of_journal(b"".join(lines), whole) == "wrong"
    tally = Tally()
    tally.add("journals", "wrong", "lines swapped")
    assert tally.bad == ["journals: wrong: lines swapped"]
    assert judged(lambda: str(1 // 0))[0] == "raised"
    assert judged(lambda: refuse("a\nb"))[0] == "many lines"
    assert judged(lambda: refuse("a"))[0] == "refused"


def refuse(said: str) -> str:
    raise ResultsError(said)


def test_damage_is_damage(whole: Undisturbed) -> None:
    """Always another file; a value that is changed leaves the one that it was made from."""
    rng = random.Random(5)
    for _ in range(50):
        assert changed_bytes(whole.journal, rng)[1] != whole.journal
        assert changed_lines(whole.journal, rng)[1] != whole.journal
    entry = entry_of(whole.journal.splitlines()[0])
    before = repr(entry)
    assert sum(repr(changed_value(entry, rng)) != before for _ in range(20)) >= 18
    assert repr(entry) == before
