"""Builds records from values of files: `decode` checks types and ranges, and names what is wrong in one line.

The fields of a record state their types, ranges and units once, as the aliases below do. msgspec converts and checks
the values.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta

from genkern.errors import InputError

# Largest number of any record, in any unit. Python's integers may exceed every float.
_MOST = 1e15
_INT64 = 2**63
# msgspec's message: what it expected, and the path of the value from "$" on.
_MESSAGE = re.compile(r"(.*?)(?: - at `(?:key in )?\$(.*)`)?", re.DOTALL)
_EXPECTED = re.compile(r"Expected (.*?)(?:, got .*)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
# msgspec's names of types, in words.
_WORDS = {
    "`array`": "a list",
    "`bool`": "true or false",
    "`float`": "a number",
    "`int`": "a whole number",
    "`object`": "a mapping",
    "`str`": "text",
}
_STEPS = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
# Every character but control characters, line separators and halves of surrogate pairs.
PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{0,300}\Z"

Flag = Annotated[bool, Meta(description="true or false")]
Whole = Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1, description="a whole number of up to 64 bits")]
Count = Annotated[int, Meta(ge=0, lt=2**31, description="a whole number from 0")]
Microseconds = Annotated[float, Meta(gt=0, lt=_MOST, description="a number of microseconds above zero")]
# Of differences of times, which may be zero.
Spread = Annotated[float, Meta(ge=0, lt=_MOST, description="a number of microseconds from zero")]
Amount = Annotated[float, Meta(ge=0, lt=_MOST, description="a finite number from zero")]
Share = Annotated[float, Meta(ge=0, le=1, description="a share from 0 to 1")]
Text = Annotated[
    str,
    Meta(pattern=PRINTABLE, description="printable text of up to 300 characters; put it in quotes"),
]
# Digest of machine code or of its source; "" if unknown.
Digest = Annotated[str, Meta(pattern=r"\A([0-9a-f]{16})?\Z", description="a digest of 16 hexadecimal digits; drop it")]
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z", description="a SHA-256 of 64 hexadecimal digits")]
Symbol = Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_]{0,250}\Z", description="a name of letters and digits")]

Record = TypeVar("Record")


def decode(
    kind: type[Record],
    values: Any,
    *,
    at: str = "",
    name_of: Callable[[str], str] | None = None,
    from_text: bool = False,
) -> Record:
    """Return the record (a dataclass) of type `kind` with these values.

    values: mapping of field names to values, such as JSON gives. A value that is a dataclass already is kept.
    at: place of `values` in its file, for messages
    name_of: returns the name in the file for a path in the record, such as `interval_us[0]`
    from_text: numbers and flags may also be text, as in CSV

    Raises InputError (one line: name in the file, value, what is expected) if a field is missing or unknown, or if a
    value is of another type or out of range.
    """
    made: type = kind
    if isinstance(values, Mapping) and (unknown := values.keys() - _field_names(made)):
        raise InputError(f"{_place(at, shown(min(map(str, unknown))))} is not a field of {kind.__name__}")
    try:
        return msgspec.convert(values, kind, strict=not from_text)
    except msgspec.ValidationError as error:
        raise InputError(_told(error, kind, values, at, name_of)) from None
    except RecursionError:
        raise InputError(f"{at or kind.__name__} is nested too deep") from None


def shown(value: object) -> str:
    """Return `value` as short text for a one-line message."""
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    return "a mapping" if isinstance(value, Mapping) else f"a {type(value).__name__}"


@functools.lru_cache(maxsize=64)
def _field_names(kind: type) -> Collection[str]:
    return frozenset(field.name for field in dataclasses.fields(kind))


def _told(
    error: msgspec.ValidationError, kind: type, values: Any, at: str, name_of: Callable[[str], str] | None
) -> str:
    """Return the error as one line with the name in the file, the value, and what the field expects."""
    found = _MESSAGE.fullmatch(str(error))
    assert found is not None
    said, path = found[1], (found[2] or "").removeprefix(".")
    if (missing := _MISSING.fullmatch(said)) is not None:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return f"{_place(at, name_of(path) if name_of else path)} is missing"
    name = _place(at, name_of(path) if name_of else path)
    if (expected := _EXPECTED.fullmatch(said)) is None:
        # A record's own check has refused its values.
        return " ".join(f"{name}: {said}".removeprefix(": ").split())
    text = _described(kind, path) or _WORDS.get(expected[1], expected[1].replace("`", ""))
    return f"{name or kind.__name__} = {shown(_value_at(values, path))} is not {text}"


def _place(at: str, path: str) -> str:
    return f"{at}.{path}" if at and path else at or path


def _value_at(values: Any, path: str) -> Any:
    for name, index in _STEPS.findall(f".{path}" if path and not path.startswith("[") else path):
        if index == "...":
            return values
        values = values[int(index)] if index else values.get(name) if isinstance(values, Mapping) else None
    return values


def _described(kind: type, path: str) -> str:
    """Return the description of the type of the value at `path`; "" if it has none."""
    step = _STEPS.match(f".{path}")
    if step is None or not step[1]:
        return ""
    said = get_type_hints(kind, include_extras=True).get(step[1])
    rest = path[step.end() - 1 :]
    inner = next((each for each in (said, *get_args(said)) if dataclasses.is_dataclass(each)), None)
    if rest.startswith(".") and isinstance(inner, type):
        return _described(inner, rest[1:])
    return _description(said, is_element=rest.startswith("["))


def _description(said: Any, *, is_element: bool = False) -> str:
    """Return the description that a type has. For an element of a list, the list's own does not count."""
    for each in () if is_element else getattr(said, "__metadata__", ()):
        if isinstance(each, Meta) and each.description:
            return each.description
    return next(filter(None, map(_description, get_args(said))), "")
