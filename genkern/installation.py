"""How this genkern was installed, for hints that its user can follow."""

from __future__ import annotations

from pathlib import Path

_ABOVE = Path(__file__).resolve().parents[1]


def is_checkout() -> bool:
    """Return True if genkern runs from its source tree, which has a Makefile and setup.cfg beside the package."""
    return (_ABOVE / "setup.cfg").is_file() and (_ABOVE / "Makefile").is_file()


def pip_install(extra: str) -> str:
    """Return the command that installs an extra, such as "torch"."""
    if is_checkout():
        return f"pip install '.[{extra}]' in genkern's checkout"
    return f"pip install 'genkern[{extra}]'"
