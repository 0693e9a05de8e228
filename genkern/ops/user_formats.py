"""Users' own formats: a folder with a Python package, its templates and its spaces, given by --op PATH.

A folder is known to this process and, through an environment variable, to the processes that it starts.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from genkern.errors import InputError

# Environment variable with the absolute paths of the folders, separated as in PATH.
ENVIRONMENT = "GENKERN_OP_FOLDERS"


def format_folders() -> tuple[Path, ...]:
    """Return the absolute paths of the known folders, in the order in which they were added."""
    return _folders(os.environ.get(ENVIRONMENT, ""))


# Cached, because it is called for each row of a results file.
@functools.lru_cache(maxsize=16)
def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(name) for name in text.split(os.pathsep) if name)


def add_folder(folder: Path) -> None:
    """Add a folder to the known folders."""
    known = [*map(str, format_folders()), str(folder)]
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys(known))


def load_package(folder: Path) -> ModuleType:
    """Import the Python package in `folder` once and return it. Raises InputError if it is missing or fails."""
    name = f"genkern_op_{folder.name}"
    place = folder / "__init__.py"
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(place):
        return known
    spec = importlib.util.spec_from_file_location(name, place, submodule_search_locations=[str(folder)])
    if not place.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{folder} holds no format: it has no __init__.py (see docs/your_own_format.md)")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # User code may raise anything, which is reported in one line.
        del sys.modules[name]
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{place} cannot be imported: {type(error).__name__}: {text}") from error
    return module
