"""Which Triton is installed, for what differs between its releases: rules and spaces are written for all of them."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

_VERSION = re.compile(r"""^__version__ = ['"]([^'"]{1,100})['"]\s*$""", re.MULTILINE)


def triton_version() -> str:
    """The version of the Triton that would be imported here; "" when there is none.

    Its own word, since the distribution has several names (triton, triton-rocm, pytorch-triton-rocm), but read and not
    imported, which takes longer than all else that a run needs to start.
    """
    try:
        spec = importlib.util.find_spec("triton")
        text = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
        said = _VERSION.search(text)
        return said[1] if said else str(importlib.import_module("triton").__version__)
    except (ImportError, ValueError, OSError):
        return ""


@lru_cache(maxsize=1)
def triton_release() -> tuple[int, int]:
    """Major and minor number of the installed Triton; (0, 0) when there is none."""
    numbers = re.match(r"(\d+)\.(\d+)", triton_version())
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def installed(package: str) -> bool:
    """Whether `package` can be imported here, as far as that can be told without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
