"""Which CuTe DSL is installed: an optional extra, which only processes that compile its kernels ever import."""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache

from genkern.installation import pip_install

DISTRIBUTION = "nvidia-cutlass-dsl"
# What the extra `cute` in setup.cfg installs. Its binaries are found in the cache where no CuTe DSL is installed.
PINNED = "4.8.1"
MISSING = f"CuTe DSL is not installed: {pip_install('cute')}, or compile where it is"


@lru_cache(maxsize=1)
def cute_installed() -> bool:
    """Whether kernels in CuTe DSL can be compiled here."""
    return _installed_version() != ""


def cute_version() -> str:
    """The installed version, or, where there is none, the one whose binaries are looked for."""
    return _installed_version() or PINNED


def _installed_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
