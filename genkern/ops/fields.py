"""What a format asks of a problem besides its size and types, declared once as a frozen dataclass; the rest follows.

A format's dataclass has a field for each, made by `word` or `number`, all with defaults. A problem keeps those that
differ from their default, in the order of their names (`GemmProblem.own`): so equal problems are equal whoever made
them, and what reads or writes problems needs to know no field by name.
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
    """Of a format that asks for nothing more."""


@dataclass(frozen=True)
class Field:
    """One field as files and the command line have it: one of `words`, or a number from `least` to `most`.

    Calls that do not say a word have the one that fits their operands, or `in_calls`.
    """

    name: str
    help: str
    default: int | str
    words: tuple[str, ...] = ()
    least: int = 0
    most: int = 0
    in_calls: str = ""

    def parse(self, value: object) -> int | str:
        """The value as a problem keeps it. Raises InputError for any other than the field may have."""
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
    """A field that has one of these words; the first is the default, and `in_calls` that of calls."""
    metadata = {"help": help, "words": words, "in_calls": in_calls}
    return dataclasses.field(default=words[0], metadata=metadata)


def number(default: int, least: int, most: int, help: str) -> Any:
    """A field that has a number from `least` to `most`."""
    return dataclasses.field(default=default, metadata={"help": help, "least": least, "most": most})


# Pruning asks it of every config.
@functools.lru_cache(maxsize=64)
def fields_of(kind: type) -> tuple[Field, ...]:
    """The fields that a format's dataclass declares."""
    declared: Iterable[Any] = dataclasses.fields(kind)
    return tuple(Field(field.name, default=field.default, **field.metadata) for field in declared)


def own_values(kind: type[T], problem: GemmProblem) -> T:
    """The problem's own fields, as its format declares them."""
    return kind(**dict(problem.own))


def words_in_calls(kind: type) -> dict[str, int | str]:
    """What calls mean that do not say it, of fields whose default is another."""
    return {field.name: field.in_calls for field in fields_of(kind) if field.in_calls}


def parse_own(kind: type, values: Mapping[str, object]) -> Own:
    """What a problem keeps of `values`, which may name other things too. Raises InputError for a value that is none."""
    found = ((field, field.parse(values[field.name])) for field in fields_of(kind) if field.name in values)
    return tuple(sorted((field.name, value) for field, value in found if value != field.default))


def problem_cells(problem: GemmProblem) -> dict[str, str]:
    """All that tells problems apart, as texts for a row of a table; columns as in genkern's YAML, and `own`."""
    names = ("M", "N", "K", "op", "dtype_a", "dtype_b", "dtype_c")
    layout = {"rowMajorA": "NT"[problem.row_major_a], "rowMajorB": "NT"[problem.row_major_b]}
    more = {"bias": str(problem.bias), "activation": problem.activation, "own": own_text(problem.own)}
    return {name: str(getattr(problem, name)) for name in names} | layout | more


def own_text(own: Iterable[tuple[str, object]]) -> str:
    """For one cell of a table, and for people: `block_k=64 block_n=64`; "" where there is none."""
    return " ".join(f"{name}={value}" for name, value in own)
