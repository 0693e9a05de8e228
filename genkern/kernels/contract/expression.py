"""`Expression`: an integer formula over a config, a problem size and a device, as data.

Grids, boxes and workspaces are expressions. Families write them with Python's operators; one pure function evaluates
them. They are stored as JSON, and written as Python in generated modules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Union

from genkern.errors import InputError
from genkern.gemm import columns
from genkern.gemm.columns import Column, either

# An int is a known value; an Expression is a name or an operation.
Value = Union[int, "Expression"]
# Number of operands of each operation.
OPERATIONS = {"+": 2, "-": 2, "*": 2, "//": 2, "%": 2, ">": 2, "cdiv": 2, "min": 2, "max": 2, "if": 3}
_RESULTS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    ">": lambda left, right: int(left > right),
    "cdiv": lambda left, right: -(-left // right),
    "min": min,
    "max": max,
}
# Operations of the table above that are written otherwise for columns.
_ON_COLUMNS: dict[str, Callable[[Column, Column], Column]] = {
    ">": operator.gt,
    "min": columns.least,
    "max": columns.most,
}
_DIVISIONS = ("//", "%", "cdiv")
# Precedence of Python's operators. Other operations are calls, or written in brackets.
_BINDING = {">": 1, "+": 2, "-": 2, "*": 3, "//": 3, "%": 3}
# Bounds on depth, number of parts and size of numbers. No family's expressions exceed them; they limit the work of
# reading and evaluating an untrusted file.
_MOST_DEPTH, _MOST_PARTS, _MOST_NUMBER = 32, 1000, 2**63


@dataclass(frozen=True)
class Expression:
    """An operation on values; if the operation is "name", a reference to the value called `name`.

    `if` is its second operand if the first is not 0, else its third. `cdiv` divides and rounds up.
    """

    operation: str
    operands: tuple[Value, ...] = ()
    name: str = ""

    def __add__(self, other: Value) -> Expression:
        return Expression("+", (self, other))

    def __sub__(self, other: Value) -> Expression:
        return Expression("-", (self, other))

    def __mul__(self, other: Value) -> Expression:
        return Expression("*", (self, other))

    def __floordiv__(self, other: Value) -> Expression:
        return Expression("//", (self, other))

    def __rfloordiv__(self, other: int) -> Expression:
        return Expression("//", (other, self))

    def __mod__(self, other: Value) -> Expression:
        return Expression("%", (self, other))

    def __gt__(self, other: Value) -> Expression:
        return Expression(">", (self, other))


def name(text: str) -> Expression:
    """Return a reference to the value of this name, which is known only later."""
    return Expression("name", (), text)


def cdiv(value: Value, by: Value) -> Expression:
    """Return `value` divided by `by`, rounded up."""
    return Expression("cdiv", (value, by))


def least(one: Value, other: Value) -> Expression:
    """Return the smaller value."""
    return Expression("min", (one, other))


def most(one: Value, other: Value) -> Expression:
    """Return the larger value."""
    return Expression("max", (one, other))


def where(condition: Value, then: Value, otherwise: Value) -> Expression:
    """Return `then` if the condition is not 0, else `otherwise`."""
    return Expression("if", (condition, then, otherwise))


def fold(value: Value, known: Mapping[str, Value]) -> Value:
    """Return the value with known names replaced and every operation on numbers computed."""
    if isinstance(value, int):
        return value
    if value.operation == "name":
        return known.get(value.name, value)
    if value.operation == "if":
        condition, *branches = value.operands
        condition = fold(condition, known)
        if isinstance(condition, int):
            return fold(branches[0 if condition else 1], known)
        return Expression("if", (condition, *(fold(branch, known) for branch in branches)))
    left, right = (fold(operand, known) for operand in value.operands)
    if isinstance(left, int) and isinstance(right, int):
        return _computed(value.operation, left, right)
    return Expression(value.operation, (left, right))


def evaluate(value: Value, known: Mapping[str, Value]) -> int:
    """Return the value as a number. Raises InputError if a name is not in `known`."""
    result = fold(value, known)
    if isinstance(result, int):
        return result
    raise InputError(f"no values are known for {', '.join(sorted(names_in(result)))}: give their values")


def evaluate_columns(value: Value, known: Mapping[str, Column]) -> Column:
    """Return the value for every config of a table. `known` has a column for every name in `value`."""
    if isinstance(value, int):
        return value
    if value.operation == "name":
        return known[value.name]
    operands = [evaluate_columns(operand, known) for operand in value.operands]
    if value.operation == "if":
        condition, then, otherwise = operands
        return either(condition != 0, then, otherwise)
    return _ON_COLUMNS.get(value.operation, _RESULTS.get(value.operation))(*operands)  # type: ignore[misc]


def _computed(operation: str, left: int, right: int) -> int:
    if operation in _DIVISIONS and right < 1:
        raise InputError(f"{left} {operation} {right}: values can only be divided by 1 or more")
    return _RESULTS[operation](left, right)


# The smallest and the largest value that a number may have, both included.
Bounds = tuple[int, int]


def bounds_of(value: Value, known: Mapping[str, Bounds]) -> Bounds:
    """Return bounds of the value for names within their bounds. The true range may be narrower.

    Raises InputError if a divisor may be less than 1, or if the bounds of a name are not known. So if it returns,
    `evaluate` succeeds for all values of the names within their bounds.
    """
    if isinstance(value, int):
        return value, value
    if value.operation == "name":
        if value.name not in known:
            raise InputError(f"nothing is known of {value.name}: give its bounds")
        return known[value.name]
    of = [bounds_of(operand, known) for operand in value.operands]
    if value.operation == "if":
        (_, then, otherwise), (first, last) = of, of[0]
        if first > 0 or last < 0:
            return then
        return otherwise if first == last else (min(then[0], otherwise[0]), max(then[1], otherwise[1]))
    left, right = of
    if value.operation in _DIVISIONS and right[0] < 1:
        raise InputError(f"a divisor of {value.operation} may be {right[0]}: sizes are divided by 1 or more only")
    if value.operation == "%" and (left[0] < left[1] or right[0] < right[1]):
        return 0, min(left[1], right[1] - 1) if left[0] >= 0 else right[1] - 1
    # The other operations are monotone in each operand, so that the ends give the bounds.
    ends = [_RESULTS[value.operation](one, other) for one in left for other in right]
    return min(ends), max(ends)


def names_in(value: Value) -> frozenset[str]:
    """Return the names that a value refers to."""
    if isinstance(value, int):
        return frozenset()
    return frozenset({value.name} if value.name else ()).union(*map(names_in, value.operands))


def spelled(value: Value, spell: Callable[[str], str], outer: int = 0) -> str:
    """Return the value as Python text.

    `spell` returns the text for a name. `outer` is the precedence of the surrounding operator.
    """
    if isinstance(value, int):
        return str(value)
    if value.operation == "name":
        return spell(value.name)
    if value.operation == "if":
        condition, then, otherwise = (spelled(operand, spell, 1) for operand in value.operands)
        return f"({then} if {condition} else {otherwise})"
    if value.operation not in _BINDING:
        function = "triton.cdiv" if value.operation == "cdiv" else value.operation
        return f"{function}({', '.join(spelled(operand, spell) for operand in value.operands)})"
    binding = _BINDING[value.operation]
    left, right = value.operands
    # Python chains comparisons, so a comparison on the left side needs brackets.
    text = f"{spelled(left, spell, binding + (binding == 1))} {value.operation} {spelled(right, spell, binding + 1)}"
    return f"({text})" if binding < outer else text


def to_json(value: Value) -> Any:
    """Return the value as JSON data: a number, a name, or a list of an operation and its operands."""
    if isinstance(value, int):
        return value
    return value.name or [value.operation, *map(to_json, value.operands)]


def from_json(data: Any, names: frozenset[str]) -> Value:
    """Return the value that `to_json` has turned into `data`.

    Raises InputError for any other data and for names that are not in `names`.
    """
    return _read(data, names, 0, iter(range(_MOST_PARTS)))


def _read(data: Any, names: frozenset[str], depth: int, left: Iterator[int]) -> Value:
    if isinstance(data, int) and not isinstance(data, bool) and -_MOST_NUMBER < data < _MOST_NUMBER:
        return data
    if isinstance(data, str) and data in names:
        return name(data)
    if isinstance(data, list) and data and isinstance(data[0], str) and depth < _MOST_DEPTH:
        operation, *operands = data
        if OPERATIONS.get(operation) == len(operands) and next(left, None) is not None:
            return Expression(operation, tuple(_read(operand, names, depth + 1, left) for operand in operands))
    raise InputError(f"{str(data)[:80]!r} is no number, none of {', '.join(sorted(names))}, and no operation on them")
