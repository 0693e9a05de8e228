"""Finds libhipblaslt: the one that this process has loaded, else PyTorch's, else ROCm's, else the loader's."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
from pathlib import Path

from genkern.runtime.backends.cublaslt_library import mapped, opened, version_of
from genkern.runtime.backends.hipblaslt_api import Api

_FILE = re.compile(r"libhipblaslt\.so(\.[0-9]+)*$")


@functools.lru_cache(maxsize=1)
def load() -> tuple[Api | None, str]:
    """Return the library; or None, and why it is not available."""
    return opened(*find(), Api)


def find(maps: str = "/proc/self/maps") -> tuple[str, str]:
    """Return the library's path; or "", and why there is none. `maps` lists the files that this process has mapped."""
    loaded = next((path for path in mapped(maps) if _FILE.search(path)), "")
    if loaded:
        return loaded, ""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "", "PyTorch, whose hipBLASLt is raced, is not installed"
    torch_folder = Path(spec.origin).parent
    if not version_of("hip", torch_folder):
        return "", "this PyTorch is not built with ROCm, so it calls no hipBLASLt"
    # PyTorch's wheels contain the library; a build against the system's ROCm uses ROCm's.
    for folder in (torch_folder / "lib", Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "lib"):
        if found := sorted(path for path in folder.glob("libhipblaslt.so*") if _FILE.search(path.name)):
            return str(found[0]), ""
    return "libhipblaslt.so", ""
