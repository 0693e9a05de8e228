"""Users' own families: Python files, given by --family, that define FAMILY and the kernel's `build` function.

A file is known to this process and, through an environment variable, to the processes that it starts.
"""

from __future__ import annotations

import os
from pathlib import Path

from genkern.errors import InputError
from genkern.file_io import import_file
from genkern.kernels.contract.family import Family

# Environment variable with the absolute paths of the files, separated as in PATH.
ENVIRONMENT = "GENKERN_FAMILY_FILES"
# Prefix of every family name in CuTe DSL. Results files and --libtype recognise the language by it.
PREFIX = "cute_"


def family_files() -> tuple[Path, ...]:
    """Return the absolute paths of the known files, in the order in which they were added."""
    return tuple(Path(name) for name in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if name)


def add_family_file(file: Path) -> None:
    """Add a file to the known files."""
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys([*map(str, family_files()), str(file)]))


def family_of(file: Path) -> Family:
    """Return the family that a file defines.

    Raises InputError, in one line, if the file defines none or fails when it is imported.
    """
    if not file.is_file() or file.suffix != ".py":
        raise InputError(f"{file} is not a Python file that defines a family (docs/cute.md)")
    try:
        module = import_file(file, f"genkern_family_{file.stem}")
    except Exception as error:  # User code may raise anything, which is reported in one line.
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{file} cannot be imported: {type(error).__name__}: {text}") from error
    family = getattr(module, "FAMILY", None)
    if not isinstance(family, Family):
        raise InputError(f"{file} does not define FAMILY = Family(...) (docs/cute.md)")
    if family.language != "cute" or not family.name.startswith(PREFIX):
        raise InputError(f"{file}: a family must have language = 'cute' and a name that begins with {PREFIX!r}")
    return family
