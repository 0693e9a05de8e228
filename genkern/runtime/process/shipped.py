"""Bundles that are installed with genkern: GENKERN_CONFIG=shipped names them."""

from __future__ import annotations

from pathlib import Path

import genkern
from genkern.runtime.bundle import SUFFIX

# What stands in the place of a path; a file of that name is ./shipped.
WORD = "shipped"
FOLDER = Path(genkern.__file__).parent / "winners"


def shipped_bundles() -> list[str]:
    """Their paths; none if `make bundle` was not run before genkern was installed."""
    return sorted(str(path) for path in FOLDER.glob(f"*{SUFFIX}"))
