"""Tests of genkern/journal/facts.py; what a journal is read as, and what is refused, is in test_journal.py."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from test_journal import CHECK, CRASHED, FINALS, HEADER, NAME, OTHER, PROBLEM, SCREENED, START, WINNER, filled, opened

from genkern.cli.status import RunStatus, State, status_lines
from genkern.errors import ResultsError
from genkern.journal.facts import ProblemFacts, read_ends, read_journal
from genkern.journal.header import UnusableJournal
from genkern.journal.journal_line import chained_line, checksums, entry_of, journal_line
from genkern.result.journal_values import values_of


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
        won = journal_line("won", {**values_of(WINNER), "config": f"{WINNER.config.name}_ahead3"}, 0)
        file.write(chained_line(won[:-1], checksums(path.read_bytes().splitlines()[-1])[1]) + b"\n")
    with pytest.raises(UnusableJournal, match=r"_ahead3'.*GENKERN_FAMILY_FILES") as caught:
        read_ends(path)
    assert "damaged" not in str(caught.value)


WRONG: list[Any] = [None, "\x1b[2J", [], {}, [[1]], 10**400, -1, float("nan"), True]


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a value in JSON's, itself included."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths_in(inner, (*at, key))


def changed(value: Any, at: tuple[Any, ...], wrong: Any) -> Any:
    """A copy with another value there."""
    if not at:
        return wrong
    copy = value.copy()
    copy[at[0]] = changed(value[at[0]], at[1:], wrong)
    return copy


def test_values_of_other_types_are_damage(tmp_path: Path) -> None:
    """In lines whose checksums are whole: refused in one line, or read so that `genkern status` can show them."""
    path = tmp_path / "r.yaml.journal"
    filled(path)
    entries = [entry_of(line) for line in path.read_bytes().splitlines()]
    said: list[str] = []
    shown = 0
    for number, entry in enumerate(entries):
        for turn, at in enumerate(paths_in(entry["value"])):
            values = [each["value"] for each in entries]
            values[number] = changed(entry["value"], at, WRONG[turn % len(WRONG)])
            written(path, entries, values)
            try:
                lines = status_lines(RunStatus("r.yaml", State.GOING_ON, read_journal(path), 1.0, 2.0))
            except ResultsError as error:
                said.append(str(error))
            else:
                assert lines
                shown += 1
    assert not any("\n" in each for each in said)
    assert min(len(said), shown) > 20


def written(path: Path, entries: Sequence[Mapping[str, Any]], values: Sequence[Any]) -> None:
    """The journal with these values, each line where it stands."""
    lines, checksum = [], 0
    for entry, value in zip(entries, values, strict=True):
        line = chained_line(journal_line(entry["fact"], value, entry.get("problem"))[:-1], checksum)
        _, checksum = checksums(line)
        lines.append(line + b"\n")
    path.write_bytes(b"".join(lines))


def test_a_packed_value_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short line does not take a gigabyte."""
    monkeypatch.setattr("genkern.journal.journal_line._MOST_BYTES", 2**20)
    packed = base64.b64encode(zlib.compress(b"[" + b" " * 2**21, 9)[2:]).decode()
    text = json.dumps({"fact": "screened", "problem": 0, "packed": packed}).encode()
    with pytest.raises(ValueError, match="longer than any value"):
        entry_of(text[:-1] + b',"crc":%d}' % zlib.crc32(text))


def test_what_is_of_other_code_now_is_forgotten(tmp_path: Path) -> None:
    """All of it, finals included: half of them would not be comparable. A winner that is of the same code stands."""
    path = tmp_path / "j"
    journal = opened(path)
    for problem in (PROBLEM, OTHER):
        journal.add_screened(problem, SCREENED, "0123456789abcdef")
        journal.add_screened(problem, CRASHED, "fedcba9876543210")
        journal.add_retimed(problem, FINALS)
        journal.add_check(problem, CHECK)
    journal.add_winner(WINNER)
    assert journal.of(PROBLEM).configs == [NAME, CRASHED.config]
    journal.add_outdated(PROBLEM, [CRASHED.config])
    assert (journal.of(PROBLEM).winner, journal.of(PROBLEM).finals) == (WINNER, FINALS)
    assert (journal.of(PROBLEM).screened, journal.of(PROBLEM).codes) == ({NAME: SCREENED}, {NAME: "0123456789abcdef"})
    journal.add_outdated(OTHER, [NAME])
    journal.close()
    other = ProblemFacts(screened={CRASHED.config: CRASHED}, codes={CRASHED.config: "fedcba9876543210"})
    assert journal.of(OTHER) == other
    assert opened(path).facts == journal.facts


def test_generated_otherwise_makes_no_other_run(tmp_path: Path) -> None:
    """Facts say of which code they are; those that do not are of that of the beginning, or of nobody knows which."""
    path = tmp_path / "j"
    opened(path, {**HEADER, "generator": "a"}).close()
    alike = [opened(path, {**HEADER, "generator": said}).is_generated_alike for said in ("a", "b")]
    assert alike == [True, False]
    opened(tmp_path / "old").close()
    assert not opened(tmp_path / "old", {**HEADER, "generator": "a"}).is_generated_alike
