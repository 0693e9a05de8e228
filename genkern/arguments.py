"""Command lines: parsers that say what is wrong in one line, and help of at most 100 columns."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import re
import shutil
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

from genkern.errors import InputError

_HELP_COLUMNS = 100
_Item = TypeVar("_Item")
SHARD_HELP = "of the sizes only each N-th from the I-th on: 1/4 to 4/4 are the jobs of an array"
_SHARD = re.compile(r"([1-9][0-9]{0,4})/([1-9][0-9]{0,4})")


def shown_names(action: argparse.Action) -> list[str]:
    """An option's names for a reader: without tune_gemm's old spellings, and without dashes for underscores."""
    names = [name for name in action.option_strings if name.startswith("--") or len(name) <= 3]
    return [name for name in names if "-" not in name.lstrip("-")]


class Formatter(argparse.RawDescriptionHelpFormatter):
    """At most 100 columns; an option's value is shown once, after its last name."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(_HELP_COLUMNS, shutil.get_terminal_size().columns - 2))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return str(action.metavar)
        value = "" if action.nargs == 0 else f" {self._format_args(action, '')}"
        return ", ".join(shown_names(action)) + value


class Parser(argparse.ArgumentParser):
    """Raises InputError where argparse would end the process.

    Names of options are taken whole; each command lists its own -h, in the group where it belongs.
    """

    def __init__(self, prog: str, *, description: str, usage: str | None = None, epilog: str | None = None) -> None:
        super().__init__(
            prog, usage, description, epilog, formatter_class=Formatter, allow_abbrev=False, add_help=False
        )

    def parse_args(  # type: ignore[override]  # nobody hands in a namespace of another type
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """As argparse has it. Raises InputError, which has the nearest name in it for what is not known."""
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
    """`argv` with underscores in the options of `parser` that are written with dashes."""
    names = parser._option_string_actions
    written = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        dashes = len(name) - len(name.lstrip("-"))
        proper = name[:dashes] + name[dashes:].replace("-", "_")
        written.append(f"{proper}{equals}{value}" if dashes and proper in names else argument)
    return written


def number(kind: str, least: float, most: float, integer: bool = False) -> Callable[[str], float]:
    """Reads a number from `least` to `most`; raises argparse.ArgumentTypeError, which says that it is not `kind`."""

    def read(text: str) -> float:
        value = least - 1
        with contextlib.suppress(ValueError):
            value = int(text) if integer else float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is not {kind}")
        return value

    return read


def read_shard(text: str) -> str:
    """A shard of a list as it is written, I/N. Raises argparse.ArgumentTypeError."""
    if (match := _SHARD.fullmatch(text)) is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a share such as 1/4 or 4/4")
    return text


def of_shard(items: Sequence[_Item], shard: str | None) -> tuple[_Item, ...]:
    """Those of a shard, all where there is none. Neighbours, which take alike long, are of different shards."""
    if shard is None:
        return tuple(items)
    number, _, count = shard.partition("/")
    return tuple(items[int(number) - 1 :: int(count)])
