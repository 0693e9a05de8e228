"""Tests of genkern.kernels.contract.expression: a value is the same whenever its names become known, in every form."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genkern.errors import InputError
from genkern.kernels.contract.expression import (
    OPERATIONS,
    Expression,
    Value,
    bounds_of,
    evaluate,
    fold,
    from_json,
    name,
    names_in,
    spelled,
    to_json,
)

NAMES = ("M", "SPLIT_K", "units")
KNOWN = st.fixed_dictionaries({each: st.integers(1, 300) for each in NAMES})


def operations(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    """An operation on values, none of which divides by 0 or less."""
    two = [operation for operation, count in OPERATIONS.items() if count == 2]
    divided = st.builds(
        lambda operation, left, right: Expression(operation, (left, Expression("max", (right, 1)))),
        st.sampled_from(["//", "%", "cdiv"]),
        inner,
        inner,
    )
    others = [operation for operation in two if operation not in ("//", "%", "cdiv")]
    return st.one_of(
        divided,
        st.builds(lambda operation, *pair: Expression(operation, pair), st.sampled_from(others), inner, inner),
        st.builds(lambda *three: Expression("if", three), inner, inner, inner),
    )


VALUES = st.recursive(st.one_of(st.integers(0, 300), st.sampled_from(list(map(name, NAMES)))), operations, max_leaves=8)


class _Triton:
    @staticmethod
    def cdiv(value: int, by: int) -> int:
        return -(-value // by)


@given(VALUES, KNOWN, st.sets(st.sampled_from(NAMES)))
def test_folding_first_changes_nothing(value: Value, known: dict[str, int], first: set[str]) -> None:
    """What is folded with some of the names hangs on the others alone, and is then the same number."""
    folded = fold(value, {each: known[each] for each in first})
    assert not names_in(folded) & first
    assert evaluate(folded, dict(known)) == evaluate(value, dict(known))


@given(VALUES, KNOWN)
@example(Expression(">", (Expression(">", (name("M"), 2)), 1)), {"M": 3})
def test_python_means_the_same(value: Value, known: dict[str, int]) -> None:
    """What a generated module computes is what the plan says."""
    assert int(eval(spelled(value, str), {"triton": _Triton, **known})) == evaluate(value, dict(known))


@given(VALUES)
def test_json_loses_nothing(value: Value) -> None:
    """A value comes back as it was."""
    assert from_json(to_json(value), frozenset(NAMES)) == value


@pytest.mark.parametrize(
    "data",
    ["other", "", None, True, 1.5, [], ["+", 1], ["+", 1, 2, 3], ["**", 1, 2], ["name", "units"], [["+"], 1, 2], {}],
)
def test_what_is_no_value_is_refused(data: object) -> None:
    """No other names, operations or types are read, whatever a file says."""
    with pytest.raises(InputError, match="is no number"):
        from_json(data, frozenset(NAMES))


def test_deep_nesting_is_refused() -> None:
    """A file cannot make the reader recurse without end."""
    data: object = 1
    for _ in range(100):
        data = ["+", data, 1]
    with pytest.raises(InputError):
        from_json(data, frozenset(NAMES))


def test_what_is_not_known_is_named() -> None:
    """Evaluation says which names it lacks, and does not divide by nothing."""
    with pytest.raises(InputError, match="SPLIT_K"):
        evaluate(name("M") * name("SPLIT_K"), {"M": 3})
    with pytest.raises(InputError, match="divided by 1 or more"):
        evaluate(name("M") // 0, {"M": 3})


def any_operations(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    """An operation on values, also one that divides by 0 or less."""
    two = [operation for operation, count in OPERATIONS.items() if count == 2]
    return st.one_of(
        st.builds(lambda operation, *pair: Expression(operation, pair), st.sampled_from(two), inner, inner),
        st.builds(lambda *three: Expression("if", three), inner, inner, inner),
    )


ANY = st.recursive(st.one_of(st.integers(-9, 9), st.sampled_from(list(map(name, NAMES)))), any_operations, max_leaves=8)
RANGES = st.fixed_dictionaries({each: st.tuples(st.integers(-6, 6), st.integers(0, 6)) for each in NAMES})


@given(ANY, RANGES, st.data())
def test_bounds_hold_for_every_value(value: Value, ranges: dict[str, tuple[int, int]], data: st.DataObject) -> None:
    """Where there are bounds, no value of the names is divided by less than 1, and each result is within them."""
    known = {each: (first, first + more) for each, (first, more) in ranges.items()}
    chosen = {each: data.draw(st.integers(*between)) for each, between in known.items()}
    try:
        first, last = bounds_of(value, known)
    except InputError:
        return
    assert first <= evaluate(value, chosen) <= last


def test_bounds_refuse_divisors_below_one() -> None:
    """And names of which nothing is known."""
    for divisor in (0, -1, name("M") - 5, name("M") % 2):
        for operation in ("//", "%", "cdiv"):
            with pytest.raises(InputError, match="divisor"):
                bounds_of(Expression(operation, (1, divisor)), {"M": (1, 9)})
    with pytest.raises(InputError, match="units"):
        bounds_of(name("units"), {"M": (1, 9)})
