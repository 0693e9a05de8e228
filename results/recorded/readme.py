"""Write results/recorded/README.md, what the columns of recorded tables are, from the code: `make docs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genkern.recorded.columns import COLUMNS, PROBLEM

PAGE = Path(__file__).with_name("README.md")
_HEAD = """# Recorded spaces

A row is one config, or library call, of one problem in one run (`make docs` writes this page):

    genkern record RESULTS -o results/recorded
    genkern replay results/recorded --search NAME
    genkern.recorded.reading.load("results/recorded")

[searched](searched) has 5,601 sizes measured in part (`--also`).

Column | Meaning
---|---
"""


def page() -> str:
    """The page as Markdown."""
    said = {column.name: column.meaning for column in COLUMNS if column not in PROBLEM}
    rows = {", ".join(f"`{column.name}`" for column in PROBLEM): "the problem, as in results", **_quoted(said)}
    return _HEAD + "".join(f"{name} | {meaning}\n" for name, meaning in rows.items())


def _quoted(said: Mapping[str, str]) -> dict[str, str]:
    return {f"`{name}`": meaning for name, meaning in said.items()}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
