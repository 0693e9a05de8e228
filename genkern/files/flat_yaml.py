"""Reads YAML lists of flat mappings, as tune_gemm writes them, event by event, so that every entry knows its line.

Only what such a file needs is accepted. Tags, anchors, aliases and deep nesting are refused, so that a hostile file has
nothing to expand, construct or recurse into.

Lines that genkern itself writes do not need the YAML parser: but for their quotes they are JSON, whose parser is 20
times as fast. From the first line of another form on, the YAML parser reads the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from genkern.decoding import shown
from genkern.errors import GenkernError

# The parser in C is about ten times as fast; PyYAML may be built without it.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# A longer value is not part of a size.
_MAX_SCALAR = 4096
# The plain integers on which YAML 1.1 (PyYAML's version) and YAML 1.2 agree. They differ on 0100 (64 or 100), 1:30 (90
# or text) and 1_000 (1000 or text), so such values are refused.
_PLAIN_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_EXAMPLE = "- {'M': 16, 'N': 4096, 'K': 4096}"
# An entry on one line whose values mean the same in YAML and JSON: texts without quotes and backslashes; decimal
# numbers that YAML 1.1 reads as decimal numbers, too (no leading zeros, exponents with a sign); at most one level of
# nested mappings.
_TEXT = r"'[^'\"\\]{0,4000}'"
_VALUE = rf"(?:{_TEXT}|-?(?:0|[1-9][0-9]{{0,17}})(?:\.[0-9]{{1,20}}(?:e[-+][0-9]{{1,3}})?)?|true|false|null)"
_KEY = r"'[^'\"\\]{1,200}'"
_NESTED = rf"\{{(?:{_KEY}: {_VALUE}(?:, {_KEY}: {_VALUE})*)?\}}"
_PLAIN_ENTRY = re.compile(rf"- (\{{{_KEY}: (?:{_VALUE}|{_NESTED})(?:, {_KEY}: (?:{_VALUE}|{_NESTED}))*\}}) *(?: #.*)?")


@dataclass(frozen=True)
class Entry:
    """One mapping of the list. `line` counts from 1; values are scalars or one more level of mapping."""

    line: int
    values: Mapping[str, object]


def read_entries(text: str, where: str, error: type[GenkernError]) -> Iterator[Entry]:
    """Yield the entries of the YAML list in `text`, in order; none for `[]`.

    Raises `error` (one line, with `where` and the line number) when it reaches text that is not such a list.
    """
    start, line, last_entry = 0, 1, None
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        written = text[start:end].removesuffix("\r")
        # YAML takes some unprintable characters as line ends, and refuses others.
        if written and not (written.startswith("#") and written.isprintable()):
            if (values := _plain_values(written)) is None:
                break
            yield Entry(line, values)
            last_entry = start, line
        start, line = end + 1, line + 1
    else:
        if last_entry is not None:
            return
    # The parser starts at the last entry that was read, since it needs the list's context, and skips it. The empty
    # lines in front keep the line numbers of the whole file.
    start, line = last_entry or (0, 1)
    entries = _parsed("\n" * (line - 1) + text[start:], where, error)
    if last_entry is not None:
        next(entries)
    yield from entries


def _plain_values(line: str) -> dict[str, object] | None:
    """Return the values of an entry in the form that genkern writes; None for a line of another form."""
    if (match := _PLAIN_ENTRY.fullmatch(line)) is None or not line.isprintable():
        return None
    values: dict[str, object] = msgspec.json.decode(match[1].replace("'", '"'))
    # Texts have no quotes, so that these characters follow keys only. Fewer keys are left if one is repeated.
    keys = len(values) + sum(len(value) for value in values.values() if isinstance(value, dict))
    return values if keys == line.count("': ") else None


def _parsed(text: str, where: str, error: type[GenkernError]) -> Iterator[Entry]:
    """Yield the entries of any YAML list. Raises `error`."""
    try:
        yield from _Reader(_LOADER(text), where, error).entries()
    except yaml.YAMLError as exc:
        problem = str(getattr(exc, "problem", None) or getattr(exc, "reason", None) or exc).splitlines()[0]
        mark = exc.problem_mark if isinstance(exc, yaml.MarkedYAMLError) else None
        line = "" if mark is None else f", line {mark.line + 1}"
        raise error(f"{where}{line}: not YAML ({problem[:100]}); write lines such as {_EXAMPLE}") from None


class _Reader:
    def __init__(self, loader: Any, where: str, error: type[GenkernError]) -> None:
        self._loader = loader
        self._where = where
        self._error = error

    def entries(self) -> Iterator[Entry]:
        self._loader.get_event()
        if self._loader.check_event(yaml.StreamEndEvent):
            raise self._error(f"{self._where}: is empty; write lines such as {_EXAMPLE}")
        self._loader.get_event()
        top = self._loader.get_event()
        if not isinstance(top, yaml.SequenceStartEvent):
            if isinstance(top, yaml.MappingStartEvent):
                found = "one mapping"
            else:
                found = shown(self._scalar(top))
            raise self._fail(top, f"holds {found} instead of a list; write lines such as {_EXAMPLE}")
        while not self._loader.check_event(yaml.SequenceEndEvent):
            event = self._loader.get_event()
            if not isinstance(event, yaml.MappingStartEvent):
                raise self._fail(event, f"every item of the list must be a mapping such as {_EXAMPLE[2:]}")
            # The loader keeps every value in case of an alias; aliases are refused.
            self._loader.constructed_objects.clear()
            yield Entry(_line(event), self._mapping(event, nested=False))
        self._loader.get_event()
        self._loader.get_event()
        if not self._loader.check_event(yaml.StreamEndEvent):
            event = self._loader.get_event()
            raise self._fail(event, "a second YAML document starts; put all into one list")

    def _mapping(self, start: Any, nested: bool) -> dict[str, object]:
        self._refuse_extras(start)
        values: dict[str, object] = {}
        while not self._loader.check_event(yaml.MappingEndEvent):
            event = self._loader.get_event()
            key = self._scalar(event)
            if not isinstance(key, str):
                raise self._fail(event, f"the key {shown(key)} is not text; use keys such as M, N and K")
            if key in values:
                raise self._fail(event, f"{shown(key)} is repeated in one entry; keep one")
            event = self._loader.get_event()
            if isinstance(event, yaml.MappingStartEvent) and not nested:
                values[key] = self._mapping(event, nested=True)
            elif isinstance(event, yaml.ScalarEvent):
                values[key] = self._scalar(event, key)
            else:
                kind = "a list" if isinstance(event, yaml.SequenceStartEvent) else "an alias or a nested mapping"
                raise self._fail(event, f"the value of {shown(key)} is {kind}; write one plain value")
        self._loader.get_event()
        return values

    def _scalar(self, event: Any, key: str = "") -> object:
        if not isinstance(event, yaml.ScalarEvent):
            raise self._fail(event, f"expected a plain value or key here; write lines such as {_EXAMPLE}")
        self._refuse_extras(event)
        if len(event.value) > _MAX_SCALAR:
            raise self._fail(event, f"a value of {len(event.value)} characters is too long; at most {_MAX_SCALAR}")
        tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _NUMBERS and _is_ambiguous(tag, event.value):
            name = f"{key} = " if key else ""
            raise self._fail(
                event,
                f"{name}{shown(event.value)[1:-1]} is not a plain decimal number, and YAML's versions read it "
                "differently; write it without leading zeros, colons, underscores and 0x",
            )
        try:
            value: object = self._loader.construct_object(yaml.ScalarNode(tag, event.value))
        except (yaml.YAMLError, ValueError, OverflowError):
            # Dates such as 2020-13-45, integers of 5,000 digits, and YAML's special scalars `<<` and `=`.
            raise self._fail(event, f"{shown(event.value)} is not a usable value; write a whole number") from None
        return value

    def _refuse_extras(self, event: Any) -> None:
        if event.tag not in (None, "!") or event.anchor is not None:
            raise self._fail(event, "YAML tags (!), anchors (&) and aliases (*) are not accepted; write the value out")

    def _fail(self, event: Any, message: str) -> GenkernError:
        return self._error(f"{self._where}, line {_line(event)}: {message}")


def _is_ambiguous(tag: str, text: str) -> bool:
    if tag.endswith("int"):
        return _PLAIN_INTEGER.fullmatch(text) is None
    return ":" in text or "_" in text


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
