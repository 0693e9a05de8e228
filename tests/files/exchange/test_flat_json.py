"""Tests of genkern/files/exchange/flat_json.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import InputError
from genkern.files.exchange.flat_json import read_object


def test_an_object_is_plain_data() -> None:
    """Values come as JSON has them."""
    assert read_object('{"a": 1, "b": [true, null, "x"], "c": {"d": 1.5}}', "f", InputError) == {
        "a": 1,
        "b": [True, None, "x"],
        "c": {"d": 1.5},
    }


@settings(max_examples=repeats(40, 100))
@given(st.text(alphabet='{}[]",:0123456789eENan. tfrulse\n', max_size=40))
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    """Whatever the text is: an object, or one line that names the file."""
    refusal = ""
    try:
        assert isinstance(read_object(text, "f.json", InputError), dict)
    except InputError as error:
        refusal = str(error)
    assert not refusal or refusal.startswith("f.json")
    assert "\n" not in refusal


@pytest.mark.parametrize("text", ["9" * 5000, '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "", '{"a": 1, "a": 2}'])
def test_extremes(text: str) -> None:
    """Digits and brackets without end, nothing, a key twice."""
    with pytest.raises(InputError):
        read_object(text, "f.json", InputError)
