"""Families of someone's own: Python files, given by --family, that say FAMILY and have the kernel's `build`.

A file is known to this process and, through the environment, to those that it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from genkern.errors import InputError
from genkern.files import import_file
from genkern.kernels.contract.family import Family

# Files, separated as in PATH.
ENVIRONMENT = "GENKERN_FAMILY_FILES"
# What its name begins with, as results and --libtype tell languages apart.
PREFIX = "cute_"


def files() -> tuple[Path, ...]:
    """The files that are known, absolute, in the order in which they came."""
    return tuple(Path(name) for name in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if name)


def remember(file: Path) -> None:
    """Make a file known, from here on."""
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys([*map(str, files()), str(file)]))


def family_of(file: Path) -> Family:
    """What a file declares. Raises InputError, one line, for one that declares none, or fails."""
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"{file} is no Python file with a family (docs/cute.md)")
    try:
        module = import_file(file, f"genkern_family_{file.stem}")
    except Exception as error:  # whatever someone else's code raises is to be told as one line
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{file} cannot be imported: {type(error).__name__}: {text}") from error
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        raise InputError(f"{file} says no FAMILY = Family(...) (docs/cute.md)")
    if family.language != "cute" or not family.name.startswith(PREFIX):
        raise InputError(f"{file}: a family has language = 'cute', and a name that begins with {PREFIX!r}")
    return family
