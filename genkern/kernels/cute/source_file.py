"""Kernels that lie in files of their own rather than in generated modules: where these are, and their digests."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

import genkern.templates
from genkern.errors import InputError
from genkern.files import regular_bytes

# What all kernels of genkern's in CuTe DSL may import.
_SHARED = Path(genkern.templates.__path__[0]) / "cute"


def path_of(file: str) -> Path:
    """Of the file of a kernel: below genkern's templates, unless it says the whole way."""
    return Path(genkern.templates.__path__[0]) / file


@lru_cache(maxsize=64)
def sha256_of(file: str) -> str:
    """Digest, hex, of its text and of whatever else its folder has in Python, which it may import.

    Of a file in a folder of templates/cute also of what that one has. Raises InputError where it cannot be read.
    """
    path = path_of(file)
    digest = hashlib.sha256(path.name.encode())
    try:
        folders = [path.parent, *([_SHARED] if _SHARED in path.parents else [])]
        for each in sorted({path, *(found for folder in folders for found in folder.glob("*.py"))}):
            digest.update(b"\0" + regular_bytes(each))
    except OSError as error:
        raise InputError(f"{file}: cannot read this kernel: {error.strerror}") from None
    return digest.hexdigest()


def files_of(file: str) -> tuple[Path, ...]:
    """The file of a kernel and what it imports of genkern's templates, directly or not, sorted.

    What a file of someone else's imports is not known: that is all the Python in its folder. Raises InputError where
    one cannot be read.
    """
    path = path_of(file)
    if _SHARED not in path.parents:
        return tuple(sorted({path, *path.parent.glob("*.py")}))
    found: set[Path] = set()
    waiting = [path]
    while waiting:
        found.add(each := waiting.pop())
        waiting += [other for other in _imported(each) if other not in found]
    return tuple(sorted(found))


@lru_cache(maxsize=64)
def _imported(path: Path) -> tuple[Path, ...]:
    """The files of genkern's templates that a file imports."""
    try:
        tree = ast.parse(regular_bytes(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read this kernel: {error.strerror}") from None
    start = genkern.templates.__name__ + "."
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return tuple(
        path_of(name.removeprefix(start).replace(".", "/") + ".py") for name in names if name.startswith(start)
    )
