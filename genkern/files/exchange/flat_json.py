"""Reads a JSON file of another program: one object of plain data; anything else raises a one-line error."""

from __future__ import annotations

import json
from collections.abc import Sequence

from genkern.decoding import shown
from genkern.errors import GenkernError


class _NoData(ValueError):
    """JSON that is valid, but not usable as data: repeated keys, and constants such as NaN."""


def read_object(text: str, where: str, error: type[GenkernError]) -> dict[str, object]:
    """Return the object in `text`. Raises `error` (one line, with `where`) for other text, and for a repeated key."""
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except _NoData as exc:
        raise error(f"{where}: {exc}") from None
    except json.JSONDecodeError as exc:
        raise error(f"{where}, line {exc.lineno}: not JSON ({exc.msg}); check the file") from None
    except (ValueError, RecursionError):
        # Numbers with thousands of digits, or thousands of nested brackets.
        raise error(f"{where}: not JSON that can be read (too deep, or a number too long); check the file") from None
    if not isinstance(found, dict):
        kind = "a list" if isinstance(found, list) else shown(found)
        raise error(f"{where}: holds {kind} instead of an object, {{...}}")
    return found


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise _NoData(f"{shown(key)} is repeated in one object; keep one")
        found[key] = value
    return found


def _constant(name: str) -> object:
    raise _NoData(f"{name} is not a number; write one, or drop the key")
