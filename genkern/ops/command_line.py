"""Command-line options that formats add: --op with names or folders, and options for the formats' own fields."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from genkern.ops.fields import fields_of
from genkern.ops.op import add_op, get_op, op_folders, op_names

# Prefix of the fields' names in the parsed options.
_KEPT = "own_"


def add_folders(argv: Sequence[str]) -> None:
    """Register the format whose folder --op names, before the options are parsed, since it may add options.

    Raises InputError if the folder holds no format.
    """
    for place, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        folder = value if equals else "".join(argv[place + 1 : place + 2])
        if name == "--op" and folder and folder not in op_names() and (os.sep in folder or Path(folder).is_dir()):
            add_op(folder)


def op_name(text: str) -> str:
    """Return the name of a format, given its name or the folder of a registered format (see `add_folders`)."""
    if text in op_names():
        return text
    if name := next((name for name, folder in op_folders().items() if folder == Path(text).resolve()), ""):
        return name
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is none of {', '.join(op_names())}, and not a folder")


def default_types(place: int) -> str:
    """Return the help text for the default type of A (0), B (1) or C (2).

    It has the most common default, then the other defaults with their formats.
    """
    of: dict[str, list[str]] = {}
    for name in op_names():
        of.setdefault(get_op(name).default_dtypes("")[place], []).append(name)
    first, *others = sorted(of, key=lambda dtype: -len(of[dtype]))
    return "; ".join([first, *(f"{dtype} for {', '.join(of[dtype])}" for dtype in others)])


def add_fields(group: argparse._ArgumentGroup) -> None:
    """Add an option for every field of every format. Values are checked once the problem's format is known."""
    helps: dict[str, list[str]] = {}
    for op in op_names():
        for field in fields_of(get_op(op).fields):
            of = ", ".join(field.words) if field.words else f"{field.least} to {field.most}"
            said = f"{field.help}: {of}; {field.default} is the default"
            # Formats with shuffled weights have the same fields, with the same help, as the format that they derive
            # from.
            if said not in helps.setdefault(field.name, []):
                helps[field.name].append(said)
    for name, lines in helps.items():
        group.add_argument(f"--{name}", dest=f"{_KEPT}{name}", metavar="VALUE", help=". ".join(lines))


def option_fields(options: argparse.Namespace) -> tuple[tuple[str, object], ...]:
    """Return the fields that the command line sets, with their values as given."""
    kept = ((name, value) for name, value in vars(options).items() if name.startswith(_KEPT))
    return tuple((name.removeprefix(_KEPT), value) for name, value in kept if value is not None)
