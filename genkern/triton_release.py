"""Which Triton is installed, for what differs between its releases: rules and spaces are written for all of them."""

from __future__ import annotations

import importlib.util
import re
from functools import lru_cache


@lru_cache(maxsize=1)
def triton_release() -> tuple[int, int]:
    """Major and minor number of the installed Triton; (0, 0) when there is none."""
    try:
        # Its own word, since the distribution has several names (triton, triton-rocm, pytorch-triton-rocm).
        version = str(importlib.import_module("triton").__version__)
    except ImportError:
        return 0, 0
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def installed(package: str) -> bool:
    """Whether `package` can be imported here, as far as that can be told without importing it."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
