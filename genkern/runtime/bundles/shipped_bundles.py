"""Bundles that are installed with genkern: GENKERN_CONFIG=shipped selects them."""

from __future__ import annotations

from pathlib import Path

import genkern
from genkern.runtime.bundles.bundle import SUFFIX

# The word that stands for these bundles in place of a path. A file with this name must be given as ./shipped.
WORD = "shipped"
FOLDER = Path(genkern.__file__).parent / "winners"


def shipped_bundles() -> list[str]:
    """Return the paths of these bundles; an empty list if `make bundle` was not run before genkern was installed."""
    return sorted(str(path) for path in FOLDER.glob(f"*{SUFFIX}"))
