"""Arithmetic on columns: a column has a parameter's value for each config of a table, or one value for all of them.

A column is an int or a word if all configs have the same value, else a NumPy array. Arrays broadcast against each other
as the table's axes do (`genkern.gemm.config_table`). A mask is a bool or an array of bools of the same kind. Python's
operators work on both, except `and`, `or`, `not`, `min`, `max` and chained comparisons: use `&`, `|`, `negated`,
`least`, `most` and `within`. One formula then serves a single config (plain numbers, exact, without NumPy) and a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Types depend on the table, so expressions on columns are not typed.
Column = Any
Mask = Any
# Masks of configs that cannot compute a problem, each with the reason. The first reason counts for a config. A
# generator that yields them goes on for all configs of a table, including those that an earlier mask refuses.
Refusals = Iterator[tuple[Mask, str]]


def negated(mask: Mask) -> Mask:
    """Return True where the mask is False."""
    return not mask if isinstance(mask, bool) else ~mask


def within(first: Column, column: Column, last: Column) -> Mask:
    """Return True where a value is from `first` to `last`."""
    return (first <= column) & (column <= last)


def either(mask: Mask, then: Column, otherwise: Column) -> Column:
    """Return `then` where the mask is True, else `otherwise`."""
    if isinstance(mask, bool):
        return then if mask else otherwise
    import numpy as np

    return np.where(mask, then, otherwise)


def least(one: Column, other: Column) -> Column:
    """Return the smaller of two numbers."""
    if _are_numbers(one, other):
        return min(one, other)
    import numpy as np

    return np.minimum(one, other)


def most(one: Column, other: Column) -> Column:
    """Return the larger of two numbers."""
    if _are_numbers(one, other):
        return max(one, other)
    import numpy as np

    return np.maximum(one, other)


def is_in(column: Column, values: tuple[int | str, ...]) -> Mask:
    """Return True where a value is one of `values`."""
    found: Mask = False
    for value in values:
        found = found | (column == value)
    return found


def distinct(column: Column) -> list[Any]:
    """Return the values that occur in a column, in ascending order."""
    if isinstance(column, int | str):
        return [column]
    import numpy as np

    return list(np.unique(column).tolist())


def mapped(function: Callable[..., int | bool], *columns: Column) -> Column:
    """Return the function's result for each config, for functions that take numbers only.

    The function is called once for each combination of values that occurs. It should have few of them.
    """
    if all(isinstance(column, int | str) for column in columns):
        return function(*columns)
    import numpy as np

    given = np.broadcast_arrays(*columns)
    listed = list(zip(*(column.ravel().tolist() for column in given), strict=True))
    results = {values: function(*values) for values in dict.fromkeys(listed)}
    return np.array([results[values] for values in listed]).reshape(given[0].shape)


def _are_numbers(*columns: Column) -> bool:
    return all(isinstance(column, int | float) for column in columns)
