"""Seams: functions of an engine that another is put around, checked first, so that an engine with others runs as it is.

An engine promises few of its functions to anybody. Each part of a plugin (its linear layers, its experts) says which it
needs, with the names of their arguments; where one is not so, that part is left out, and one line says so.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

_LOG = logging.getLogger("genkern.engines")
_NAMES = "GENKERN_CONFIG"
# What a function that was put around another has, so that nobody puts a second one around it.
_MARK = "_genkern_around"


class Misfit(Exception):
    """What of an engine is not as this was written for, in words that end a sentence."""


@dataclass(frozen=True)
class Seam:
    """A function `name` of `owner`, a module or a class, whose arguments begin with `parameters`.

    `make` gives what takes its place, of what was there before.
    """

    owner: Any
    name: str
    parameters: tuple[str, ...]
    make: Callable[[Callable[..., Any]], Callable[..., Any]]

    def require(self) -> None:
        """Raises Misfit where there is no such function."""
        require(getattr(self.owner, self.name, None), f"{_named(self.owner)}.{self.name}", self.parameters)

    def put(self) -> None:
        """Put it in its place, once."""
        before = getattr(self.owner, self.name)
        if not hasattr(before, _MARK):
            made = self.make(before)
            setattr(made, _MARK, before)
            setattr(self.owner, self.name, made)


def require(function: object, name: str, parameters: Sequence[str]) -> None:
    """Raises Misfit unless `function` can be called, and its arguments begin with these names."""
    if not callable(function):
        raise Misfit(f"there is no {name}")
    try:
        # What was put there before has its arguments from whom it was put around.
        found = tuple(inspect.signature(getattr(function, _MARK, function)).parameters)
    except (TypeError, ValueError):
        raise Misfit(f"{name} does not say what it takes") from None
    if found[: len(parameters)] != tuple(parameters):
        raise Misfit(f"{name} takes ({', '.join(found)[:200]}), not ({', '.join(parameters)})")


def put(seams: Sequence[Seam]) -> None:
    """All of them, or none. Raises Misfit."""
    for seam in seams:
        seam.require()
    for seam in seams:
        seam.put()


def taken_out(seam: Seam) -> None:
    """Give the owner back what was there; nothing where nothing was put."""
    found = getattr(seam.owner, seam.name, None)
    if (before := getattr(found, _MARK, None)) is not None:
        setattr(seam.owner, seam.name, before)


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a bundle or results are named for any format; without one a plugin does nothing."""
    return any(value.strip() and (name == _NAMES or name.startswith(f"{_NAMES}_")) for name, value in environ.items())


def install(engine: str, parts: Mapping[str, Callable[[], None]]) -> tuple[str, ...]:
    """Install each part of an engine's plugin, by what it serves; those that fit, of which one line of log tells.

    A part may raise Misfit, or what an engine of another version makes it raise: ImportError, AttributeError,
    TypeError. It is left out then, with a line that says why, and the engine does that by itself.
    """
    from genkern.runtime.default import show_log

    # Engines show their own loggers' lines alone. Of genkern's there are others, a line for each size without a winner.
    show_log(_LOG)
    fitting = []
    for what, part in parts.items():
        try:
            part()
            fitting.append(what)
        except (Misfit, ImportError, AttributeError, TypeError) as reason:
            said = " ".join(str(reason).split())[:300]
            _LOG.warning("%s %s serves its %s without genkern: %s", engine, version_of(engine), what, said)
    if fitting:
        _LOG.info("%s %s calls winners in its %s", engine, version_of(engine), ", ".join(fitting))
    return tuple(fitting)


def version_of(engine: str) -> str:
    """As it was installed, "" where nobody says."""
    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return ""


def _named(owner: Any) -> str:
    of_module = getattr(owner, "__module__", "")
    return f"{of_module}.{owner.__qualname__}" if isinstance(owner, type) else str(getattr(owner, "__name__", owner))
