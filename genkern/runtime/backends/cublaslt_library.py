"""Finds libcublasLt: the one that this process has loaded, else the one that PyTorch was built with.

PyTorch is not imported for that: its folder and the text of its version.py are enough.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from genkern.runtime.backends.cublaslt_api import Api

AnyApi = TypeVar("AnyApi")

_FILE = re.compile(r"libcublasLt\.so(\.[0-9]+)*$")
# Folders below site-packages, by CUDA's major version; CUDA 13 and later have one folder for all libraries.
_WHEEL_FOLDERS = ("nvidia/cu{major}/lib", "nvidia/cublas/lib", "torch/lib")


@functools.lru_cache(maxsize=1)
def load() -> tuple[Api | None, str]:
    """Return the library; or None, and why it is not available."""
    return opened(*find(), Api)


def opened(path: str, why: str, api: Callable[[str], AnyApi]) -> tuple[AnyApi | None, str]:
    """Return the library at `path`; or None, and why it cannot be used. `why` is the reason if `path` is ""."""
    if not path:
        return None, why
    try:
        return api(path), ""
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be used: {' '.join(str(error).split())[:200]}"


def find(maps: str = "/proc/self/maps") -> tuple[str, str]:
    """Return the library's path; or "", and why there is none. `maps` lists the files that this process has mapped."""
    loaded = next((path for path in mapped(maps) if _FILE.search(path)), "")
    if loaded:
        return loaded, ""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", "PyTorch, which brings libcublasLt, is not installed"
    folder = Path(spec.origin).parent
    cuda = version_of("cuda", folder)
    if not cuda:
        return "", "this PyTorch is not built with CUDA, so it brings no libcublasLt"
    major = cuda.partition(".")[0]
    for below in _WHEEL_FOLDERS:
        place = folder.parent / below.format(major=major)
        if found := sorted(path for path in place.glob("libcublasLt.so*") if _FILE.search(path.name)):
            return str(found[0]), ""
    # A CUDA installation of the system: the loader searches the library by its name.
    return f"libcublasLt.so.{major}", ""


def version_of(name: str, torch_folder: Path) -> str:
    """Return the version of "cuda" or "hip" with which the PyTorch in this folder was built, such as "13.0", or ""."""
    try:
        text = (torch_folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    said = re.search(rf"^{name}\b[^=]*=\s*(.*)$", text, re.MULTILINE)
    return said[1].strip().strip("'\"").replace("None", "") if said else ""


def mapped(maps: str) -> Iterator[str]:
    """Yield the files that this process has mapped into its memory."""
    try:
        with open(maps, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                # Address, permissions, offset, device, inode, path.
                parts = line.rstrip("\n").split(maxsplit=5)
                if len(parts) == 6:
                    yield parts[5]
    except OSError:
        return
