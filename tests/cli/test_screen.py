"""Tests of genkern/screen.py, and of what commands show of files that mean no good."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command import run_here
from rich.text import Text
from winner_factory import results_text, winner

from genkern.screen import Screen, aligned

CLEAR = "\x1b[2J\x1b]0;owned\x07"


def test_text_is_shown_as_it_is() -> None:
    """Markup is text, lines stay lines, controls are escaped; what is no text is rich's own affair."""
    screen = Screen(stderr=False)
    screen.file = io.StringIO()
    screen.print(f"[bold]a[/] :boom:\n\tb{CLEAR}")
    screen.print(Text("c"))
    assert screen.file.getvalue() == "[bold]a[/] :boom:\n\\tb\\x1b[2J\\x1b]0;owned\\x07\nc\n"


def test_status_shows_no_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A results file whose device has control characters is refused, and the message escapes them."""
    text = results_text([winner(16, device="H200 nothing")]).replace("'H200 nothing'", f'"H200{CLEAR!r:.0}\\e[2J"')
    (tmp_path / "r.yaml").write_text(text)
    ran = run_here(capsys, "status", tmp_path / "r.yaml")
    assert ran.status == 2
    assert r"H200\x1b[2J" in ran.err
    assert "\x1b" not in ran.out + ran.err


def test_columns_are_aligned_and_empty_ones_left_out() -> None:
    """Numbers end alike, texts begin alike, no line ends in blanks, and a column that says nothing is not there."""
    rows = [["size", "why", "us", "name"], ["1x1", "", "9.00", "a"], ["16x16", "", "12.00", ""]]
    assert aligned(rows, ["us"]) == ["size      us  name", "1x1     9.00  a", "16x16  12.00"]


def test_a_cell_stays_in_its_place() -> None:
    """Whatever a file says: no end of a line, and nothing that a terminal would do."""
    assert aligned([["device"], ["H200\x1b[2J\n\x9b1A"]], []) == ["device", r"H200\x1b[2J\n\x9b1A"]
