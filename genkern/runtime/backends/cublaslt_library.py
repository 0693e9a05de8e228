"""Where libcublasLt is: the one that this process has loaded, else the one that PyTorch was built with.

PyTorch is not imported for it: its folder and the text of its version.py say enough.
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
# Below site-packages, by the major version of CUDA: from 13 on there is one folder for all of it.
_WHEEL_FOLDERS = ("nvidia/cu{major}/lib", "nvidia/cublas/lib", "torch/lib")


@functools.lru_cache(maxsize=1)
def load() -> tuple[Api | None, str]:
    """The library, or why it is not there."""
    return opened(*find(), Api)


def opened(path: str, why: str, api: Callable[[str], AnyApi]) -> tuple[AnyApi | None, str]:
    """The library at this path, or why it cannot be used; `why` there is none, where the path is ""."""
    if not path:
        return None, why
    try:
        return api(path), ""
    except (OSError, AttributeError) as error:
        return None, f"{path} cannot be used: {' '.join(str(error).split())[:200]}"


def find(maps: str = "/proc/self/maps") -> tuple[str, str]:
    """The library's path, or "" and why there is none. `maps` lists what this process has loaded."""
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
    # Of a system's CUDA: by its name, which the loader finds or does not.
    return f"libcublasLt.so.{major}", ""


def version_of(name: str, torch_folder: Path) -> str:
    """What "cuda" or "hip" the PyTorch in this folder is built with, "13.0" say; "" for one without."""
    try:
        text = (torch_folder / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    said = re.search(rf"^{name}\b[^=]*=\s*(.*)$", text, re.MULTILINE)
    return said[1].strip().strip("'\"").replace("None", "") if said else ""


def mapped(maps: str) -> Iterator[str]:
    """The files that this process has mapped into its memory."""
    try:
        with open(maps, encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                # Address, permissions, offset, device, inode, path.
                parts = line.rstrip("\n").split(maxsplit=5)
                if len(parts) == 6:
                    yield parts[5]
    except OSError:
        return
