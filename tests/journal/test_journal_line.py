"""Tests of genkern/journal/line.py: what is written is read back to the last bit, and nothing else is."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.records import Measurement, Outcome
from genkern.journal.line import entry_of, journal_line, lean, measurement_of, unsealed_header


@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=8), st.text(max_size=20), st.integers(0, 99))
def test_measurements_survive_to_the_last_bit(samples: list[float], message: str, discarded: int) -> None:
    """Resuming chooses from the very samples that were measured: no digit is lost, whatever the message holds."""
    measured = Measurement("c", Outcome.MEASURED, "cupti", "final", samples[0], tuple(samples), message, discarded)
    line = journal_line("screened", lean(measured), 3)
    assert measurement_of(entry_of(line[:-1])["value"]) == measured
    assert line.count(b"\n") == 1


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
