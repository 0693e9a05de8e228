"""Bundles that are installed with genkern: GENKERN_CONFIG=shipped selects them."""

from __future__ import annotations

from pathlib import Path

import genkern
from genkern.runtime.bundle import SUFFIX

# The word that stands for them in place of a path. A file of this name is written as ./shipped.
WORD = "shipped"
FOLDER = Path(genkern.__file__).parent / "winners"


def shipped_bundles() -> list[str]:
    """Return their paths; none if `make bundle` was not run before genkern was installed."""
    return sorted(str(path) for path in FOLDER.glob(f"*{SUFFIX}"))
