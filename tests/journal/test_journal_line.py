"""Tests of genkern/journal/journal_line.py: what is written is read back to the last bit, and nothing else is."""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from dataclasses import asdict
from pathlib import Path
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_journal import HEADER, PROBLEM, WINNER, filled, opened

from genkern.journal.facts import Begun, read_ends, read_journal
from genkern.journal.header import SCHEMA, UnusableJournal
from genkern.journal.journal_line import entry_of, journal_line, unsealed_header


@given(st.lists(st.floats(1e-3, 1e7) | st.text(max_size=20), max_size=300))
def test_values_survive_to_the_last_bit(value: list[object]) -> None:
    """On one line, whatever they hold and however long they are."""
    line = journal_line("screened", value, 3)
    assert entry_of(line[:-1]) == {"fact": "screened", "problem": 3, "value": value, "crc": ANY}
    assert line.count(b"\n") == 1


def test_long_values_are_packed_and_short_ones_plain() -> None:
    """Plain ones are for people and jq; a header stays plain however long it is, for other versions to read."""
    short, long = ["tiled"] * 10, ["tiled"] * 1000
    assert json.loads(journal_line("screened", short))["value"] == short
    packed = journal_line("screened", long)
    assert len(packed) < 150
    assert (
        zlib.decompress(base64.b64decode(json.loads(packed)["packed"]), -15)
        == json.dumps(long, separators=(",", ":")).encode()
    )
    assert json.loads(journal_line("header", long))["value"] == long


@pytest.mark.parametrize("packed", [7, "no base64!", "AAAA", base64.b64encode(zlib.compress(b"{}")).decode()])
def test_what_cannot_be_unpacked_is_refused(packed: object) -> None:
    """Though its checksum is right: by an error that the journal's reader knows as damage."""
    text = json.dumps({"fact": "x", "packed": packed}).encode()
    with pytest.raises((ValueError, TypeError)):
        entry_of(text[:-1] + b',"crc":%d}' % zlib.crc32(text))


def test_a_line_is_compact_json_that_begins_with_its_fact() -> None:
    """For jq, and for readers that look at the first bytes alone; the last key is the checksum of the rest."""
    line = journal_line("began", {"configs": 2}, 0)
    text = b'{"fact":"began","problem":0,"value":{"configs":2}}'
    assert line == text[:-1] + b',"crc":%d}\n' % zlib.crc32(text)
    assert json.loads(line) == {**json.loads(text), "crc": zlib.crc32(text)}


def test_a_value_may_hold_what_looks_like_a_checksum() -> None:
    """The last one counts."""
    assert entry_of(journal_line("x", {"crc": 1, "a": ',"crc":7}'})[:-1])["value"] == {"crc": 1, "a": ',"crc":7}'}


@given(st.binary(max_size=40))
def test_other_bytes_are_refused(line: bytes) -> None:
    """With ValueError, whatever they are; as a header they say nothing."""
    with pytest.raises(ValueError, match="checksum"):
        entry_of(line)
    assert unsealed_header(line) == {}


@pytest.mark.parametrize("changed", [b'"crc": ', b'"crc":0', b'"crc":+', b'"crc":1_'])
def test_the_checksum_has_one_way_to_be_written(changed: bytes) -> None:
    """Its digits alone."""
    with pytest.raises(ValueError, match="checksum"):
        entry_of(journal_line("x", 1)[:-1].replace(b'"crc":', changed))


def test_a_header_is_read_without_its_checksum() -> None:
    """To tell another version by it; any other fact, or nonsense in its place, is none."""
    assert unsealed_header(b'{"fact": "header", "value": {"schema": 2}}') == {"schema": 2}
    for line in (b'{"fact":"header","value":7}', b'{"fact":"won","value":{}}', b"[]", b'{"fact":"header"}'):
        assert unsealed_header(line) == {}


def test_lines_stand_where_they_were_written(tmp_path: Path) -> None:
    """None is lost, doubled or moved unnoticed, whatever it is; but the last ones, as a kill may take them."""
    path = tmp_path / "j"
    filled(path)
    lines = path.read_bytes().splitlines(keepends=True)
    assert sum(b'"fact":"problem"' in line for line in lines) == 2
    changes = [[*lines[:n], *lines[n + 1 :]] for n in range(len(lines) - 1)]
    changes += [[*lines[: n + 1], *lines[n:]] for n in range(len(lines))]
    for one, other in itertools.combinations(range(len(lines)), 2):
        swapped = list(lines)
        swapped[one], swapped[other] = lines[other], lines[one]
        changes.append(swapped)
    for changed in changes:
        path.write_bytes(b"".join(changed))
        with pytest.raises(UnusableJournal):
            read_journal(path)
        with pytest.raises(UnusableJournal):
            read_ends(path)
    path.write_bytes(b"".join(lines))
    opened(path).close()
    assert read_journal(path).facts == filled(tmp_path / "other").facts


def test_a_journal_of_before_goes_on_as_it_is(tmp_path: Path) -> None:
    """Its lines do not say what stands before them, and those that are added do not either."""
    path = tmp_path / "j"
    lines = [journal_line("header", {"schema": SCHEMA, **HEADER}), journal_line("problem", asdict(PROBLEM))]
    path.write_bytes(b"".join([*lines, journal_line("began", vars(Begun(672, 1, 1.5)), 0)]))
    journal = opened(path)
    journal.add_winner(WINNER)
    journal.close()
    assert b'"after":' not in path.read_bytes()
    assert read_journal(path).of(PROBLEM).winner == WINNER
