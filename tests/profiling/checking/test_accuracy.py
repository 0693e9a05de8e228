"""Tests of profiling/checking/verdict.py, on the CPU."""

from __future__ import annotations

import math

import pytest

from genkern.profiling.checking.verdict import error_ratio, worst_row_error

torch = pytest.importorskip("torch")


def test_equal_outputs_have_no_error() -> None:
    """Nothing outside the tolerance, no row off; rows of zeros are no division by zero."""
    expected = torch.tensor([[1.0, -2.0], [0.0, 0.0]])
    assert error_ratio(expected.clone(), expected) == 0
    assert worst_row_error(expected.clone(), expected) == 0


def test_the_ratio_counts_elements_beyond_both_tolerances() -> None:
    """An element is close within 1e-2 + 1e-2 |expected|, as AITER's checkAllclose has it."""
    expected = torch.tensor([[100.0, 100.0, 0.0, 0.0]])
    actual = torch.tensor([[101.0, 101.1, 0.009, 0.011]])
    assert error_ratio(actual, expected) == pytest.approx(0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_element_that_is_no_number_fails_everything(bad: float) -> None:
    """One element that was not written (NaN) or overflowed makes the output wrong by both measures."""
    expected = torch.ones(3, 4)
    actual = expected.clone()
    actual[1, 2] = bad
    assert error_ratio(actual, expected) == 1
    assert worst_row_error(actual, expected) == math.inf


def test_the_worst_row_is_found_among_many_good_ones() -> None:
    """One row of a thousand that is off is seen, though the share of wrong elements is tiny."""
    expected = torch.ones(1000, 16)
    actual = expected.clone()
    actual[500] *= 1.5
    assert worst_row_error(actual, expected) == pytest.approx(0.5)
    assert error_ratio(actual, expected) == pytest.approx(0.001)


def test_a_row_that_should_be_zero_and_is_not() -> None:
    """Its error is a multiple of the absolute tolerance: large for what is seen, small for a rounding."""
    for value, error in ((1.0, 100), (1e-2, 1), (1e-7, 1e-5)):
        assert worst_row_error(torch.full((1, 4), value), torch.zeros(1, 4)) == pytest.approx(error)


def test_digits_that_an_activation_lost_do_not_count() -> None:
    """The tail of gelu differs by 100 % between two correct float32 formulas; a row that matters shows its error."""
    expected = torch.nn.functional.gelu(torch.tensor([[-5.5], [2.0]]))
    assert worst_row_error(expected * torch.tensor([[2.0], [1.0]]), expected) < 1e-4
    assert worst_row_error(expected * torch.tensor([[1.0], [1.01]]), expected) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32"])
def test_outputs_of_any_type_are_compared_in_float32(dtype: str) -> None:
    """Types of outputs are converted, their rounding is within the tolerance."""
    expected = torch.arange(1.0, 65.0).reshape(4, 16)
    actual = expected.to(getattr(torch, dtype))
    assert error_ratio(actual, expected) == 0
    assert worst_row_error(actual, expected) < 0.01
