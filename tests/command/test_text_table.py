"""Tests of genkern/command/text_table.py."""

from __future__ import annotations

from genkern.command.text_table import aligned


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    """Numbers end alike, texts begin alike, no line ends in blanks, and a column that says nothing is not there."""
    rows = [["size", "why", "us", "name"], ["1x1", "", "9.00", "a"], ["16x16", "", "12.00", ""]]
    assert aligned(rows, ["us"]) == ["size      us  name", "1x1     9.00  a", "16x16  12.00"]


def test_a_cell_stays_in_its_place() -> None:
    """Whatever a file says: no end of a line, and nothing that a terminal would do."""
    assert aligned([["device"], ["H200\x1b[2J\n\x9b1A"]], []) == ["device", r"H200\x1b[2J\n\x9b1A"]
