"""Tests of genkern/command/screen.py, and of what commands show of files that mean no good."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from command import run_here
from made_winners import results_text, winner
from rich.text import Text

from genkern.command.screen import Screen

CLEAR = "\x1b[2J\x1b]0;owned\x07"


def test_text_is_shown_as_it_is() -> None:
    """Markup is text, lines stay lines, controls are escaped; what is no text is rich's own affair."""
    screen = Screen(stderr=False)
    screen.file = io.StringIO()
    screen.print(f"[bold]a[/] :boom:\n\tb{CLEAR}")
    screen.print(Text("c"))
    assert screen.file.getvalue() == "[bold]a[/] :boom:\n\\tb\\x1b[2J\\x1b]0;owned\\x07\nc\n"


def test_status_shows_no_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of results from elsewhere, in which a device may be called anything."""
    text = results_text([winner(16, device="H200 nothing")]).replace("'H200 nothing'", f'"H200{CLEAR!r:.0}\\e[2J"')
    (tmp_path / "r.yaml").write_text(text)
    ran = run_here(capsys, "status", tmp_path / "r.yaml")
    assert ran.status == 0
    assert r"H200\x1b[2J" in ran.out
    assert "\x1b" not in ran.out
