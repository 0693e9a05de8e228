"""The fields of a format: properties of a problem besides size and types, declared as a frozen dataclass.

The dataclass has one field each, made by `word` or `number`, all with defaults. A problem stores the fields that differ
from their default, sorted by name (`GemmProblem.own`), so that equal problems compare equal, and readers and writers of
problems need not know any field.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem, Own

T = TypeVar("T")


@dataclass(frozen=True)
class NoFields:
    """The fields of a format that has none."""


@dataclass(frozen=True)
class Field:
    """One field in files and on the command line: one of `words`, or a number from `least` to `most`.

    `in_calls` is the value of run-time calls that do not set the field, if it differs from the default.
    """

    name: str
    help: str
    default: int | str
    words: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    in_calls: str = ""

    def parse(self, value: object) -> int | str:
        """Return the value as a problem stores it. Raises InputError for a value that the field cannot have."""
        if self.words:
            if value not in self.words:
                raise InputError(f"{self.name} = {str(value)[:40]!r} is not one of {', '.join(self.words)}")
            return str(value)
        number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
        if isinstance(number, bool) or not isinstance(number, int) or not self.least <= number <= self.most:
            raise InputError(
                f"{self.name} = {str(value)[:40]!r} is not a whole number from {self.least} to {self.most}"
            )
        return number


def word(*words: str, help: str, in_calls: str = "") -> Any:
    """Declare a field that has one of these words.

    The first word is the default. `in_calls` is the default of run-time calls, if it differs.
    """
    metadata = {"help": help, "words": words, "in_calls": in_calls}
    return dataclasses.field(default=words[0], metadata=metadata)


def number(default: int, least: int, most: int, help: str) -> Any:
    """Declare a field that has a number from `least` to `most`."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least, "most": most})


# Cached because pruning calls it many times for every problem.
@functools.lru_cache(maxsize=64)
def fields_of(kind: type) -> tuple[Field, ...]:
    """Return the fields that a format's dataclass declares."""
    declared: Iterable[Any] = dataclasses.fields(kind)
    return tuple(Field(field.name, default=field.default, **field.metadata) for field in declared)


def own_values(kind: type[T], problem: GemmProblem) -> T:
    """Return the problem's own fields as an instance of its format's dataclass."""
    return kind(**dict(problem.own))


def words_in_calls(kind: type) -> dict[str, int | str]:
    """Return the values of fields in run-time calls that do not set them, if they differ from the defaults."""
    return {field.name: field.in_calls for field in fields_of(kind) if field.in_calls}


def parse_own(kind: type, values: Mapping[str, object]) -> Own:
    """Return the format's fields in `values` that differ from their defaults, sorted by name, as a problem stores them.

    Other keys of `values` are ignored. Raises InputError for invalid values.
    """
    found = ((field, field.parse(values[field.name])) for field in fields_of(kind) if field.name in values)
    return tuple(sorted((field.name, value) for field, value in found if value != field.default))


def problem_cells(problem: GemmProblem) -> dict[str, str]:
    """Return everything that distinguishes problems as texts of a table row, with the columns of genkern's YAML."""
    names = ("M", "N", "K", "op", "dtype_a", "dtype_b", "dtype_c")
    layout = {"rowMajorA": "NT"[problem.row_major_a], "rowMajorB": "NT"[problem.row_major_b]}
    more = {"bias": str(problem.bias), "activation": problem.activation, "own": own_text(problem.own)}
    return {name: str(getattr(problem, name)) for name in names} | layout | more


def own_text(own: Iterable[tuple[str, object]]) -> str:
    """Return a format's own fields as one text, such as `block_k=64 block_n=64`; "" if there are none."""
    return " ".join(f"{name}={value}" for name, value in own)
