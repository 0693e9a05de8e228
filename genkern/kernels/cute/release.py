"""The installed release of CuTe DSL, an optional extra that only compile processes import."""

from __future__ import annotations

import importlib.metadata
from functools import lru_cache

from genkern.installation import pip_install

DISTRIBUTION = "nvidia-cutlass-dsl"
# Version that the extra `cute` in setup.cfg installs. Without CuTe DSL, the cache is searched for binaries of this
# version.
PINNED = "4.8.1"
MISSING = f"CuTe DSL is not installed: {pip_install('cute')}, or compile on a machine that has it"


@lru_cache(maxsize=1)
def cute_installed() -> bool:
    """Whether kernels in CuTe DSL can be compiled here."""
    return _installed_version() != ""


def cute_version() -> str:
    """Return the installed version, or the pinned version if none is installed."""
    return _installed_version() or PINNED


def _installed_version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
