"""forgets: what is kept of a context is forgotten as what is tuned changes."""

from __future__ import annotations

import weakref
from typing import Protocol

from genkern.runtime.context import Context


class Forgetful(Protocol):
    """Whoever keeps what it was told of what is tuned."""

    def forget(self) -> None: ...


def forgets(kept: Forgetful, context: Context) -> None:
    """Let it forget as what is tuned changes, for as long as anybody else has it."""
    weak = weakref.ref(kept)

    def forget() -> None:
        if (live := weak()) is not None:
            live.forget()

    # A program may patch its model for every step.
    weakref.finalize(kept, context.on_change(forget)).atexit = False
