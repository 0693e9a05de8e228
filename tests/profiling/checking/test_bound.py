"""Tests of profiling/checking/bound.py: sums as real units make them are within it, and a lost bit is not."""

from __future__ import annotations

import pytest

from genkern.profiling.checking.bound import (
    accumulator_roundoff,
    activation_error,
    keeps_few_bits,
    rounded_range,
    sum_error,
)

torch = pytest.importorskip("torch")


def test_the_accumulators_roundoff() -> None:
    """Integers have none; fp8 has 14 bits on Ada and Hopper only; all else is float32, truncated."""
    assert accumulator_roundoff("int32", "int8", "sm_90") == 0
    # Bytes may be codes, whose sums are float32's.
    assert accumulator_roundoff("fp32", "int8", "sm_90") == 2**-23
    assert accumulator_roundoff("fp32", "fp8e4m3fn", "sm_90") == 2**-13
    assert accumulator_roundoff("fp32", "bf16", "sm_90") == 2**-23
    for arch in ("gfx942", "gfx950", "sm_100"):
        assert accumulator_roundoff("fp32", "fp8e4m3fn", arch) == 2**-23
    assert keeps_few_bits("fp8e5m2", "sm_89")
    assert not keeps_few_bits("bf16", "sm_90")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_once_is_within_and_truncating_is_not(dtype: object) -> None:
    """To nearest is in the range; cut off, or one unit off, hardly anything is."""
    exact = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * 100
    error = sum_error(torch.full((64, 64), 1e-6), 2**-23, 1, "none")
    low, high = rounded_range(exact, error, dtype)
    right = exact.to(dtype)
    assert ((low <= right) & (right <= high)).all()
    unit = torch.exp2(torch.frexp(exact)[1].double() - (8 if dtype is torch.bfloat16 else 11))
    cut = ((exact / unit).trunc() * unit).to(dtype)
    assert ((low <= cut) & (cut <= high)).float().mean() < 0.6
    next_up = (right.view(torch.int16) + 1).view(dtype)
    assert not ((low <= next_up) & (next_up <= high)).any()


def test_the_sum_counts_by_its_magnitude() -> None:
    """Where terms cancel, the error stays that of the terms; it grows as the root of their number."""
    few, many = (sum_error(torch.ones(1, 1), 2**-23, n, "none").item() for n in (100, 10000))
    assert few == pytest.approx(11 * 2 * 2**-23 + 4 * 2**-23, rel=1e-3)
    assert many / few == pytest.approx(206 / 26, rel=1e-2)


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_an_activation_carries_the_sums_error(activation: str) -> None:
    """The change of activation(x) for a change of x within the sum's own error is within the error after it."""
    apply = getattr(torch.nn.functional, activation)
    x = torch.linspace(-8, 8, 4001).double()
    off = 2.0**-23 * 11 * x.abs()
    error = sum_error(apply(x.abs()).float(), 2**-23, 100, activation)
    for changed in (x - off, x + off):
        assert ((apply(changed) - apply(x)).abs() <= error).all()


def test_exact_sums_leave_an_activation_its_last_bits() -> None:
    """Of float32: rounded to bf16 they show in ties at most, and nothing errs without one."""
    exact = torch.nn.functional.gelu(torch.arange(1.0, 100))
    low, high = rounded_range(exact, activation_error(exact, "gelu"), torch.bfloat16)
    assert (low == high).float().mean() > 0.9
    assert activation_error(exact, "none") == activation_error(exact, "relu") == 0


def test_what_an_activation_lets_through_multiplies_its_last_bits() -> None:
    """Far below zero gelu has few bits in float32: times an up of 4,096 its error is within that of such a gain."""
    x = torch.linspace(-8, 2, 20001)
    found = 0.5 * x * (1 + torch.erf(x * 0.5**0.5)) * 4096
    expected = torch.nn.functional.gelu(x.double()).float() * 4096
    error = activation_error(expected, "gelu", 4096)
    assert ((found - expected).abs() <= error).all()
    assert ((found - expected).abs() > activation_error(expected, "gelu", 256)).any()
