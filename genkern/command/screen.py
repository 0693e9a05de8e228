"""Screen: the console on which commands say what they have to say, whatever stands in the files that they read."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from genkern.files import printable


class Screen(Console):
    """Text as it is: nothing in it is markup, and what would move a cursor or rename a window is shown escaped."""

    def __init__(self, *, stderr: bool) -> None:
        super().__init__(stderr=stderr, soft_wrap=True, highlight=False, markup=False, emoji=False)

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*(_shown(each) if isinstance(each, str) else each for each in objects), **options)


def _shown(text: str) -> str:
    """Lines stay lines: those of a table, or of --explain."""
    return "\n".join(map(printable, text.split("\n")))
