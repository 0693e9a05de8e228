"""What may be old while kernels are worked on, and not in a release: a warning, or a failure."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def is_released(changelog: str) -> bool:
    """Whether nothing stands under [Unreleased]."""
    return not re.search(r"## \[Unreleased\]\s+[^#\s]|## \[Unreleased\]\s+###", changelog)


def report_older(said: str) -> None:
    """Warn, or fail where CHANGELOG.md has nothing unreleased."""
    assert not is_released(CHANGELOG.read_text(encoding="utf-8")), said
    warnings.warn(said, stacklevel=2)
