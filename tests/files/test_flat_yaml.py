"""Tests of genkern.files.flat_yaml: lines in genkern's own form are read as the YAML parser reads them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from long_tests import repeats

from genkern.errors import ResultsError
from genkern.files.flat_yaml import read_entries

# What may stand where a value does: what genkern writes, and what YAML and JSON read in two ways, or refuse.
VALUES = (
    *("1", "-0", "0", "12345678901234567890123", "1.5", "-0.25", "1.0e-05", "1.0e+05", "1.0e5", "1e-05", "1E5", ".5"),
    *("0100", "0x10", "1_000", "1:30", "+1", "1.", "true", "false", "null", "True", "yes", "~", "NaN", ".inf", "-"),
    *("'a'", "''", "'it''s'", "' a '", "'1'", '"b"', "'a\\b'", "'é'", "'a\tb'", "'a # b'", "'{', 'x': 1", "word"),
    *("{}", "{'x': 1}", "{'x': 'y', 'z': 2.5}", "{'x': 1, 'x': 2}", "{'x': {'y': 1}}", "[1]", "&a 1", "*a", "!!str 1"),
)
LINES = (
    *(
        "",
        "# a comment",
        "#",
        "  # indented",
        "---",
        "...",
        "%YAML 1.1",
        "- M: 1",
        "  N: 2",
        "-",
        "x",
        "- 1",
        "- {M: 1}",
    ),
    *("- {'M': 1,", "  'N': 2}", "- {'M': 1} # a", "- {'M': 1} x", "- {'M': 1}#", "-  {'M': 1}", " - {'M': 1}", "- {}"),
    *(
        "- {'M': 1 }",
        "- {'M' : 1}",
        "- {'M':1}",
        "- {'M': 1}\u2028- {'M': 2}",
        "- {'M': 1}\r",
        "\ufeff",
        "- {'M': 1} # é",
    ),
)


def read(text: str) -> tuple[list[tuple[int, object]], str]:
    """The entries up to the first error, and the error."""
    found: list[tuple[int, object]] = []
    try:
        found += ((entry.line, dict(entry.values)) for entry in read_entries(text, "f", ResultsError))
    except ResultsError as error:
        return [], str(error)
    return found, ""


def as_yaml(text: str) -> tuple[list[tuple[int, object]], str]:
    """The same by the YAML parser alone, which reads a comment with a tab and all that follows it."""
    found, error = read(f"#\t\n{text}")
    numbered = error.split(":")[0].rpartition("line ")[2]
    if error and numbered.isdigit():
        error = error.replace(f"line {numbered}", f"line {int(numbered) - 1}", 1)
    return [(line - 1, values) for line, values in found], error


@settings(max_examples=repeats(400, 4000), deadline=None)
@given(
    lines=st.lists(
        st.one_of(
            st.sampled_from(LINES),
            st.lists(st.tuples(st.sampled_from(["M", "N", "time_us", "M N"]), st.sampled_from(VALUES)), max_size=4).map(
                lambda pairs: "- {" + ", ".join(f"'{key}': {value}" for key, value in pairs) + "}"
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_lines_of_genkerns_form_are_read_as_yaml(lines: list[str]) -> None:
    """Any mixture of lines gives the same entries on the same lines, or the same error, as the YAML parser alone."""
    text = "\n".join(lines)
    assert read(text) == as_yaml(text)


@pytest.mark.parametrize("value", VALUES)
def test_each_value_is_read_as_yaml(value: str) -> None:
    """Types too: 1, 1.0 and true are equal in Python."""
    text = f"- {{'M': 1}}\n- {{'M': {value}}}\n- {{'M': 3}}\n"
    found, expected = read(text), as_yaml(text)
    assert found == expected
    assert repr(found) == repr(expected)


def test_entries_come_before_a_later_error() -> None:
    """A reader that stops at the first entries does not pay for the rest of the file."""
    entries = read_entries("- {'M': 1}\n" * 3 + "- [\n", "f", ResultsError)
    assert [next(entries).line for _ in range(3)] == [1, 2, 3]
    with pytest.raises(ResultsError, match="line"):
        next(entries)
