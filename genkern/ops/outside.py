"""Formats that are not genkern's: a folder with a Python package, its templates and its spaces, given by --op PATH.

The folder is known to this process and, through the environment, to those that it starts.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from genkern.errors import InputError

# Folders, separated as in PATH.
ENVIRONMENT = "GENKERN_OP_FOLDERS"


def folders() -> tuple[Path, ...]:
    """The folders that are known, absolute, in the order in which they came."""
    return _folders(os.environ.get(ENVIRONMENT, ""))


# Asked for each row of a results file.
@functools.lru_cache(maxsize=16)
def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(name) for name in text.split(os.pathsep) if name)


def add_folder(folder: Path) -> None:
    """Make a folder known, from here on."""
    known = [*map(str, folders()), str(folder)]
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys(known))


def load_package(folder: Path) -> ModuleType:
    """The Python package in `folder`, imported once. Raises InputError when there is none, or when it fails."""
    name = f"genkern_op_{folder.name}"
    place = folder / "__init__.py"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(place):
        return known
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(folder)])
    if not place.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{folder} holds no format: it has no __init__.py (docs/your_own_format.md)")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever someone else's code raises is to be told as one line
        del sys.modules[name]
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{place} cannot be imported: {type(error).__name__}: {text}") from error
    return module
