"""Tests of genkern.runtime.routed.order: rows by experts, and quantised operands."""

from __future__ import annotations

import pytest
import torch

import genkern
from genkern.runtime.routed.order import order_of, quantized


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_rows_by_experts(dtype: torch.dtype) -> None:
    """Every slot once, among its expert's rows, in the order of tokens; experts without rows end where they begin."""
    ids = torch.tensor([[3, 0], [5, 3], [0, 1]], dtype=dtype)
    ends, slots = order_of(ids, 7)
    assert (ends.dtype, slots.dtype) == (torch.int32, torch.int32)
    assert ends.tolist() == [2, 3, 3, 5, 5, 6, 6]
    assert slots.tolist() == [1, 4, 5, 0, 3, 2]
    assert order_of(ids, 300)[0][-1] == 6
    # None is lost.
    ends, slots = order_of(ids.int() - 2, 3)
    assert (ends.tolist(), slots.tolist()) == ([3, 5, 6], [1, 4, 5, 0, 3, 2])


def test_quantised_is_a_name_of_the_package() -> None:
    """For callers who quantise an x once for several layers."""
    assert genkern.quantized is quantized


@pytest.mark.parametrize("scales", ["per_tensor", "per_token", "blocks"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_quantised_is_near(dtype: torch.dtype, scales: str) -> None:
    """Within half a step of the type, relative to the largest number that shares the scale; zeros stay zero."""
    x = torch.randn(5, 200) * torch.tensor([1.0, 1e-3, 1e3, 0.0, 1.0])[:, None]
    found, of_x = quantized(x, dtype, scales)
    shape = {"per_tensor": (1,), "per_token": (5, 1), "blocks": (5, 2)}[scales]
    assert (found.dtype, found.shape, of_x.shape, of_x.dtype) == (dtype, x.shape, shape, torch.float32)
    spread = of_x.repeat_interleave(128, 1)[:, :200] if scales == "blocks" else of_x
    step = 2**-4 * x.abs() + 2**-9 * spread if dtype.is_floating_point else 0.51 * spread.expand(5, 200)
    assert ((found.float() * spread - x).abs() <= step + 1e-12).all()
