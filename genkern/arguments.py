"""Command lines: parsers that report errors in one line, and help of at most 100 columns."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from genkern.errors import InputError

_HELP_COLUMNS = 100
# Title of the options that every command has.
_OUTPUT = "output"
_Item = TypeVar("_Item")
SHARD_HELP = "use only every N-th size, starting at the I-th: a job array runs 1/4 to 4/4"
_SHARD = re.compile(r"([1-9][0-9]{0,4})/([1-9][0-9]{0,4})")


def shown_names(action: argparse.Action) -> list[str]:
    """Return the names of an option to show: without tune_gemm's old spellings, and without variants with dashes."""
    names = [name for name in action.option_strings if name.startswith("--") or len(name) <= 3]
    return [name for name in names if "-" not in name.lstrip("-")]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Formats help in at most 100 columns; an option's value is shown once, after its last name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(_HELP_COLUMNS, shutil.get_terminal_size().columns - 2))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar)
        value = "" if action.nargs == 0 else f" {self._format_args(action, '')}"
        return ", ".join(shown_names(action)) + value


class Parser(argparse.ArgumentParser):
    """Raises InputError instead of ending the process as argparse does.

    Option names cannot be abbreviated. Each command defines its own -h, in the group where it belongs.
    """

    def __init__(self, prog: str, *, description: str, usage: str | None = None, epilog: str | None = None) -> None:
        super().__init__(
            prog, usage, description, epilog, formatter_class=Formatter, allow_abbrev=False, add_help=False
        )
        output = super().add_argument_group(_OUTPUT)
        output.add_argument("--json", action="store_true", help="print JSON, one object a line, for scripts")
        output.add_argument("--wide", action="store_true", help="let tables be wider than 100 columns")

    def add_argument_group(self, *args: Any, **kwargs: Any) -> argparse._ArgumentGroup:
        """Add a group of options before that of --json, which is the last."""
        group = super().add_argument_group(*args, **kwargs)
        self._action_groups.sort(key=lambda each: each.title == _OUTPUT)
        return group

    def parse_args(  # type: ignore[override]  # no caller passes another namespace type
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Parse as argparse does. Raises InputError, which suggests the nearest name for an unknown option."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            names = [name for action in self._actions for name in shown_names(action)]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], names, n=1)
            hint = f": did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)[:100]}{hint}")
        return options

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (--help lists the options)")


def underscored(argv: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return `argv` with underscores in the options of `parser` that are written with dashes."""
    names = parser._option_string_actions
    written = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        dashes = len(name) - len(name.lstrip("-"))
        proper = name[:dashes] + name[dashes:].replace("-", "_")
        written.append(f"{proper}{equals}{value}" if dashes and proper in names else argument)
    return written


def number(kind: str, least: float, most: float, integer: bool = False) -> Callable[[str], float]:
    """Return a function that parses a number from `least` to `most`.

    It raises argparse.ArgumentTypeError, which says that the text is not `kind`.
    """

    def read(text: str) -> float:
        value = least - 1
        with contextlib.suppress(ValueError):
            value = int(text) if integer else float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {kind}")
        return value

    return read


def read_shard(text: str) -> str:
    """Parse a shard I/N of a list and return it unchanged. Raises argparse.ArgumentTypeError."""
    if (match := _SHARD.fullmatch(text)) is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a shard such as 1/4 or 4/4")
    return text


def shard_of(items: Sequence[_Item], shard: str | None) -> tuple[_Item, ...]:
    """Return the items of a shard, or all if it is None.

    Neighbours, which take similar time, go to different shards.
    """
    if shard is None:
        return tuple(items)
    number, _, count = shard.partition("/")
    return tuple(items[int(number) - 1 :: int(count)])
