"""What formats add to a command line: their names, the folders of those that are not genkern's, their own fields."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from genkern.ops.fields import fields_of
from genkern.ops.op import add_op, get_op, op_folders, op_names

# In front of a field's name, where the options are kept.
_KEPT = "own_"


def add_folders(argv: Sequence[str]) -> None:
    """Make the format known that --op names by its folder, for it may have options of its own. Raises InputError."""
    for place, argument in enumerate(argv):
        name, equals, value = argument.partition("=")
        folder = value if equals else "".join(argv[place + 1 : place + 2])
        if name == "--op" and folder and folder not in op_names() and (os.sep in folder or Path(folder).is_dir()):
            add_op(folder)


def op_name(text: str) -> str:
    """The name of a format; of one that is not genkern's, by its folder (see add_folders)."""
    if text in op_names():
        return text
    if name := next((name for name, folder in op_folders().items() if folder == Path(text).resolve()), ""):
        return name
    raise argparse.ArgumentTypeError(f"{text[:40]!r} is none of {', '.join(op_names())}, and no folder")


def default_types(place: int) -> str:
    """The default types of A (0), B (1) or C (2): the commonest, and the others with the formats that have them."""
    of: dict[str, list[str]] = {}
    for name in op_names():
        of.setdefault(get_op(name).default_dtypes("")[place], []).append(name)
    first, *others = sorted(of, key=lambda dtype: -len(of[dtype]))
    return "; ".join([first, *(f"{dtype} for {', '.join(of[dtype])}" for dtype in others)])


def add_fields(group: argparse._ArgumentGroup) -> None:
    """An option for each field that formats ask for; values are checked when it is known which format a problem has."""
    helps: dict[str, list[str]] = {}
    for op in op_names():
        for field in fields_of(get_op(op).fields):
            of = ", ".join(field.words) if field.words else f"{field.least} to {field.most}"
            said = f"{field.help}: {of}; {field.default} is the default"
            # Formats that lay their weights out otherwise have the fields of the format that they are of.
            if said not in helps.setdefault(field.name, []):
                helps[field.name].append(said)
    for name, lines in helps.items():
        group.add_argument(f"--{name}", dest=f"{_KEPT}{name}", metavar="VALUE", help=". ".join(lines))


def said_fields(options: argparse.Namespace) -> tuple[tuple[str, object], ...]:
    """The fields that the command line names, with what it says of each."""
    kept = ((name, value) for name, value in vars(options).items() if name.startswith(_KEPT))
    return tuple((name.removeprefix(_KEPT), value) for name, value in kept if value is not None)
