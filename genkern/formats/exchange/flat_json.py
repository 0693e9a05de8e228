"""JSON that other people's tools write: one object, as plain data, refused in one line where it is none."""

from __future__ import annotations

import json
from collections.abc import Sequence

from genkern.errors import GenkernError
from genkern.formats.flat_yaml import shown


class _NoData(ValueError):
    """What JSON's grammar lets pass, and no file of sizes or configs means."""


def read_object(text: str, where: str, error: type[GenkernError]) -> dict[str, object]:
    """The object in `text`. Raises `error` (one line, with `where`) for other text, and for a key that stands twice."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except _NoData as exc:
        raise error(f"{where}: {exc}") from None
    except json.JSONDecodeError as exc:
        raise error(f"{where}, line {exc.lineno}: not JSON ({exc.msg}); check the file") from None
    except (ValueError, RecursionError):
        # Thousands of digits, or of brackets.
        raise error(f"{where}: not JSON that can be read (too deep, or a number too long); check the file") from None
    if not isinstance(found, dict):
        kind = "a list" if isinstance(found, list) else shown(found)
        raise error(f"{where}: holds {kind} instead of an object, {{...}}")
    return found


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _NoData(f"{shown(key)} stands twice in one object; keep one")
        found[key] = value
    return found


def _constant(name: str) -> object:
    raise _NoData(f"{name} is no number; write one, or drop the key")
