"""Tests of genkern/journal/facts.py; what a journal is read as, and what is refused, is in test_journal.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_journal import PROBLEM, START, WINNER, filled

from genkern.journal.facts import read_ends, read_journal
from genkern.journal.header import UnusableJournal
from genkern.journal.line import journal_line, values_of


def test_ends_are_read_without_what_was_found_of_configs(tmp_path: Path) -> None:
    """Starts, checks, winners and how sizes ended, from lines that are a small part of a journal."""
    path = tmp_path / "j"
    filled(path)
    ends, whole = read_ends(path), read_journal(path)
    assert (ends.header, ends.starts, ends.winners()) == (whole.header, [START], [WINNER])
    assert ends.of(PROBLEM).ended == whole.of(PROBLEM).ended
    assert ends.of(PROBLEM).checks == whole.of(PROBLEM).checks
    left_out = ends.of(PROBLEM)
    assert (left_out.screened, left_out.finals, left_out.unfit) == ({}, [], {})


def test_damage_is_refused_where_it_is_read(tmp_path: Path) -> None:
    """With its line, counted with those that are left out."""
    path = tmp_path / "j"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:-1], b"{}\n", lines[-1]]))
    with pytest.raises(UnusableJournal, match=f"line {len(lines)}: damaged"):
        read_ends(path)


def test_a_parameter_of_ones_own_is_no_damage(tmp_path: Path) -> None:
    """Whoever reads without the family's file is told what to give; the journal is as it should be."""
    path = tmp_path / "j"
    filled(path)
    with path.open("ab") as file:
        file.write(journal_line("won", {**values_of(WINNER), "config": f"{WINNER.config.name}_ahead3"}, 0))
    with pytest.raises(UnusableJournal, match=r"_ahead3' is not a config name.*; set GENKERN_FAMILY_FILES") as caught:
        read_ends(path)
    assert "damaged" not in str(caught.value)
