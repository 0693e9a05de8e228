"""The installed Triton release.

Rules and spaces are written for all supported releases; a few decisions depend on the installed one.
"""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache
from pathlib import Path

_VERSION = re.compile(r"""^__version__ = ['"]([^'"]{1,100})['"]\s*$""", re.MULTILINE)


def triton_version() -> str:
    """Return the version of the Triton that would be imported, or "" if there is none.

    It is read from Triton's source, since the distribution has several names (triton, triton-rocm,
    pytorch-triton-rocm). Triton is not imported, which would take longer than the rest of a run's start.
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
    """Return major and minor number of the installed Triton; (0, 0) if there is none."""
    numbers = re.match(r"(\d+)\.(\d+)", triton_version())
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def installed(package: str) -> bool:
    """Return True if `package` can be imported, as far as that can be determined without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
