"""Whether tests may take long (`make test-long`), for those in which more repeats show more."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

LONG = bool(os.environ.get("GENKERN_LONG_TESTS"))
T = TypeVar("T")


def repeats(short: int, long: int) -> int:
    """How often to try."""
    return long if LONG else short


def spread(cases: Sequence[T], share: int) -> Sequence[T]:
    """All cases, or one of so many, spread over their order."""
    return cases if LONG else cases[::share]
