"""Arithmetic on columns gives for each config of a table what it gives for the config's own numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from genkern.gemm.columns import distinct, either, is_in, least, mapped, most, negated, within

SMALL, LARGE = [1, 4, 9, 4], [3, 4, 5, 0]


@pytest.mark.parametrize(
    "operation",
    [
        least,
        most,
        lambda one, other: negated(one < other),
        lambda one, other: within(2, one, other),
        lambda one, other: either(one < other, one, other * 10),
        lambda one, other: is_in(one, (4, 9)) & (other > 3),
        lambda one, other: mapped(lambda a, b: (a + 1) * b, one, other),
    ],
)
def test_columns_give_what_numbers_give(operation: Callable[[Any, Any], Any]) -> None:
    """Of one axis, of two axes that broadcast, and with a number for all configs."""
    assert operation(np.array(SMALL), np.array(LARGE)).tolist() == [
        operation(one, other) for one, other in zip(SMALL, LARGE, strict=True)
    ]
    rows, columns = np.array(SMALL).reshape(-1, 1), np.array(LARGE).reshape(1, -1)
    assert operation(rows, columns).tolist() == [[operation(one, other) for other in LARGE] for one in SMALL]
    assert np.broadcast_to(operation(4, np.array(LARGE)), 4).tolist() == [operation(4, other) for other in LARGE]


def test_a_function_of_numbers_is_called_once_for_each_combination() -> None:
    """So that slow functions may be used on columns of few values."""
    calls: list[int] = []
    mapped(lambda value: calls.append(value) or value, np.array(SMALL))  # type: ignore[func-returns-value]
    assert sorted(calls) == [1, 4, 9]
    assert distinct(np.array(SMALL)) == [1, 4, 9]
    assert distinct("none") == ["none"]
