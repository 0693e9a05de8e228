"""The interface between genkern and an engine. Everything that a plugin touches is declared, verified and guarded.

Most attributes that plugins use are not stable interfaces of the engines. Each Part of a plugin declares every
attribute that it touches; install() verifies them before the part is put in place, and leaves out a part that does not
fit, with one line of log. served_or_own() guards each hook at run time: a hook that raises is switched off, and the
engine's own code computes.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

_LOG = logging.getLogger("genkern.engines")
_NAMES = "GENKERN_CONFIG"
# Attribute of a replacement that holds the function it replaced, so that a second registration replaces nothing.
_MARK = "_genkern_around"
_MOST_SAID = 300


class IncompatibleEngine(Exception):
    """An engine lacks something that a part of a plugin touches; the message says what."""


@dataclass(frozen=True)
class EngineAttribute:
    """One attribute of an engine that a part of a plugin reads, calls or replaces.

    `path` is dotted: a module, then attributes. `parameters` are the names that the callable's parameters begin with;
    None if the part does not call it. `fields` are attributes that the class must have: methods, properties, annotated
    fields, or attributes that its `__init__` sets.
    """

    path: str
    parameters: tuple[str, ...] | None = None
    fields: tuple[str, ...] = ()

    def verify(self) -> Any:
        """Returns the attribute. Raises Misfit if it is missing or has other parameters or fields, or ImportError."""
        found = resolved(self.path)
        if self.parameters is not None:
            require(found, self.path, self.parameters)
        known = _field_names(found) if self.fields else ()
        if missing := [name for name in self.fields if name not in known and not hasattr(found, name)]:
            raise IncompatibleEngine(f"{self.path} has no {', '.join(missing)}")
        return found


@dataclass(frozen=True)
class PluginPart:
    """One part of a plugin: a name for the engine's calls that it serves, the engine's attributes that it touches, and
    the function that installs it.

    `trial`, if there is one, runs after `touches` are verified and before `put`: it calls functions whose
    behaviour their names do not guarantee, and raises if a result is not as expected.
    """

    serves: str
    touches: tuple[EngineAttribute, ...]
    put: Callable[[], None]
    trial: Callable[[], None] | None = None


def install(engine: str, parts: Sequence[PluginPart]) -> tuple[str, ...]:
    """Puts each part that fits this engine in place, and returns what these parts serve.

    Logs one line for all parts that fit, and one for each part that does not: what, which release, what is missing.
    Never raises: a part that fails in any way is left out.
    """
    from genkern.runtime.process.default_context import show_log

    # Engines configure only their own loggers. Show the lines of this logger; genkern's other loggers, which write a
    # line per size, stay hidden.
    show_log(_LOG)
    fitting = []
    for part in parts:
        try:
            for touch in part.touches:
                touch.verify()
            if part.trial is not None:
                part.trial()
            part.put()
            fitting.append(part.serves)
        except Exception as reason:
            said = (engine, version_of(engine), part.serves, reason_text(reason))
            _LOG.warning("%s %s serves its %s without genkern: %s", *said)
    if fitting:
        _LOG.info("%s %s calls winners in its %s", engine, version_of(engine), ", ".join(fitting))
    return tuple(fitting)


def served_or_own(what: str, hook: Callable[..., Any], own: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `hook`, and `own` with the same arguments if `hook` returns None or raises.

    `own` is the engine's code. After `hook` has raised once, it is never called again, and one warning gives the
    place (`what`) and the reason. `hook` may write to its arguments only when it can no longer raise, since `own` gets
    the same arguments.
    """
    failed = False

    def call(*given: Any, **named: Any) -> Any:
        nonlocal failed
        if not failed:
            try:
                if (found := hook(*given, **named)) is not None:
                    return found
            except Exception as reason:
                failed = True
                said = what, reason_text(reason)
                _LOG.warning("genkern failed in %s: %s; from now on the engine's own code computes it", *said)
        return own(*given, **named)

    return call


def wrap(path: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces the function at `path` by what `make` returns for it; does nothing the second time."""
    owner_path, _, name = path.rpartition(".")
    wrap_attribute(resolved(owner_path), name, make)


def wrap_attribute(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replaces `owner`'s function `name` by what `make` returns for it; does nothing the second time."""
    before = getattr(owner, name)
    if not hasattr(before, _MARK):
        made = make(before)
        setattr(made, _MARK, before)
        setattr(owner, name, made)


def unhooked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function that put_around() replaced by this one, the function itself if it is no replacement."""
    before: Callable[..., Any] = getattr(function, _MARK, function)
    return before


def restore(owner: Any, name: str) -> None:
    """Restores the function that put_around() replaced, if it did."""
    if (before := getattr(getattr(owner, name, None), _MARK, None)) is not None:
        setattr(owner, name, before)


def require(function: object, name: str, parameters: Sequence[str]) -> None:
    """Raises Misfit unless `function` is callable and its parameters begin with these names."""
    if not callable(function):
        raise IncompatibleEngine(f"there is no {name}")
    try:
        # A replacement takes *given, **named; the function that it replaced has the names.
        found = tuple(inspect.signature(getattr(function, _MARK, function)).parameters)
    except (TypeError, ValueError):
        raise IncompatibleEngine(f"{name} has no signature to check") from None
    if found[: len(parameters)] != tuple(parameters):
        raise IncompatibleEngine(f"{name} takes ({', '.join(found)[:200]}), not ({', '.join(parameters)})")


def resolved(path: str) -> Any:
    """Returns the module, or the attribute of one, at a dotted path. Raises Misfit if there is none, or ImportError."""
    names = path.split(".")
    for end in range(len(names), 0, -1):
        try:
            found = importlib.import_module(".".join(names[:end]))
        except ModuleNotFoundError as error:
            # Continue only if the module itself, or a package above it, is missing. If it exists and one of its own
            # imports is missing, raise that error.
            if not ".".join(names[:end]).startswith(error.name or " "):
                raise
            continue
        for name in names[end:]:
            if not hasattr(found, name):
                raise IncompatibleEngine(f"there is no {path}")
            found = getattr(found, name)
        return found
    raise IncompatibleEngine(f"there is no {path}")


def is_on(environ: Mapping[str, str] = os.environ) -> bool:
    """True if GENKERN_CONFIG, or GENKERN_CONFIG_<FORMAT> for any format, names a bundle or results file."""
    return any(value.strip() and (name == _NAMES or name.startswith(f"{_NAMES}_")) for name, value in environ.items())


def version_of(engine: str) -> str:
    """Returns the installed version of a package, "" if its metadata is missing."""
    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return ""


def reason_text(reason: BaseException) -> str:
    """Returns an exception as one line, with its type unless it is a Misfit or ImportError with a message."""
    said = " ".join(str(reason).split())[:_MOST_SAID]
    return (
        said if isinstance(reason, (IncompatibleEngine, ImportError)) and said else f"{type(reason).__name__}: {said}"
    )


def _field_names(owner: Any) -> frozenset[str]:
    """Returns the names that instances of a class have, as far as the class tells."""
    found = set(dir(owner))
    for each in getattr(owner, "__mro__", ()):
        with contextlib.suppress(Exception):
            # Python 3.14 evaluates annotations here, and a name in one may exist for type checkers alone.
            found.update(inspect.get_annotations(each))
        found.update(getattr(each, "__dataclass_fields__", ()))
        initialiser = vars(each).get("__init__")
        code = None if initialiser is None else getattr(inspect.unwrap(initialiser), "__code__", None)
        # The attributes that __init__ stores or reads, on self or on another object, and the globals that it names.
        found.update(getattr(code, "co_names", ()))
    return frozenset(found)
