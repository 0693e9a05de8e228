"""Paths and digests of kernels that are Python files of their own instead of part of a generated module."""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

import genkern.templates
from genkern.errors import InputError
from genkern.file_io import regular_bytes

# Folder with the files that every CuTe DSL kernel of genkern may import.
_SHARED = Path(genkern.templates.__path__[0]) / "cute"


def path_of(file: str) -> Path:
    """Return the path of a kernel's file: relative to genkern's templates, unless `file` is absolute."""
    return Path(genkern.templates.__path__[0]) / file


@lru_cache(maxsize=64)
def sha256_of(file: str) -> str:
    """Return the hexadecimal digest of a kernel's file and of all Python files in its folder, which it may import.

    For a file below templates/cute, the digest includes the Python files directly in that folder. Raises InputError if
    a file cannot be read.
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
    """Return the kernel's file and all files of genkern's templates that it imports, directly or indirectly, sorted.

    The imports of a user's file are not followed: for such a file, all Python files of its folder are returned. Raises
    InputError if a file cannot be read.
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
    """Return the files of genkern's templates that a file imports."""
    try:
        tree = ast.parse(regular_bytes(path))
    except OSError as error:
        raise InputError(f"{path}: cannot read this kernel: {error.strerror}") from None
    start = genkern.templates.__name__ + "."
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return tuple(
        path_of(name.removeprefix(start).replace(".", "/") + ".py") for name in names if name.startswith(start)
    )
