"""Write results/recorded/README.md, which documents the columns of recorded tables, from the code: `make docs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genkern.recorded.columns import COLUMNS, PROBLEM

PAGE = Path(__file__).with_name("README.md")
_HEAD = """# Recorded spaces

Tables with the time of every config of a problem, on which searches are replayed without a GPU. A row is one config,
or one library call, of one problem in one run. `make docs` writes this page.

    genkern record RESULTS -o results/recorded             # writes tables from a run's journal
    genkern replay results/recorded --search NAME          # replays a search on them
    genkern.recorded.reading.load("results/recorded")      # loads them in Python

The folder [searched](searched) has 5,601 further sizes, at which a search measured only a part of the configs
(`--also`).

Column | Meaning
---|---
"""


def page() -> str:
    """Return the page as Markdown."""
    said = {column.name: column.meaning for column in COLUMNS if column not in PROBLEM}
    rows = {", ".join(f"`{column.name}`" for column in PROBLEM): "the problem, as in results", **_quoted(said)}
    return _HEAD + "".join(f"{name} | {meaning}\n" for name, meaning in rows.items())


def _quoted(said: Mapping[str, str]) -> dict[str, str]:
    return {f"`{name}`": meaning for name, meaning in said.items()}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
