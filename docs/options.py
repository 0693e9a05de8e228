"""Write docs/options.md, every option of every command, from the argument parsers: `make docs`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator
from pathlib import Path

from genkern.arguments import shown_names
from genkern.cli.options import parser
from genkern.subcommands import COMMANDS, MODES

# Options that every parser has, and that the page leaves out.
HELP = ("help", "help_all", "version")
PAGE = Path(__file__).with_name("options.md")
_HEAD = """# Options

`make docs` writes this page from the argument parsers; `genkern --help-all`, `genkern pack --help` and so on print the
same. Underscores in names may be written as dashes. The first word after `genkern` is the command; without one, genkern
tunes.

Exit status: 0 when all went well; 1 when a size has no winner, or a config is wrong, lost or cannot be checked; 2 for
what you must put right (one line says what); 3 for a bug in genkern; 130 when stopped.
"""


def parsers() -> Iterator[argparse.ArgumentParser]:
    """The parser of tuning, and that of each command."""
    yield parser()
    for word, each in COMMANDS.items():
        if word in MODES:
            yield parser(word)
        else:
            yield getattr(importlib.import_module(each.module), f"{word.replace('-', '_')}_parser")()


def page() -> str:
    """The page as Markdown. What a command has to the word as one above it, is named only."""
    said: set[str] = set()
    return _HEAD + "".join(f"\n## {each.prog}\n{_section(each, said)}" for each in parsers())


def _section(of: argparse.ArgumentParser, said: set[str]) -> str:
    text = f"\n{' '.join((of.description or '').split())}\n"
    again: list[str] = []
    for group in of._action_groups:
        actions = [action for action in group._group_actions if action.dest not in HELP]
        rows = [row for action in actions if (row := _row(action)) not in said]
        again += [_shown(action) for action in actions if _row(action) in said]
        said.update(rows)
        if rows:
            text += f"\n{(group.title or '').capitalize()}:\n\n" + "".join(rows)
    return f"{text}\nAs above: {', '.join(again)}.\n" if again else text


def _shown(action: argparse.Action) -> str:
    return ", ".join(f"`{name}`" for name in shown_names(action)) or f"`{action.metavar}`"


def _row(action: argparse.Action) -> str:
    return f"- {_shown(action)}: {action.help}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
