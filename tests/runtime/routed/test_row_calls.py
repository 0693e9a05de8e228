"""Tests of genkern.runtime.routed.row_calls: which kernels order and quantise rows, and when PyTorch does it."""

from __future__ import annotations

import logging

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.runtime.calls.context import Context
from genkern.runtime.routed import row_calls
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_calls import order_by, quantize_by

OP = "fused_moe"
IDS = torch.tensor([[3, 0], [5, 3], [0, 1]])


def test_ids_by_a_kernel(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """One launch, which writes into what it makes; ids off 16 bytes, of other types or with gaps are PyTorch's."""
    ends, slots = order_by(routed_context, OP, IDS, 7)(IDS)
    (launched,) = routed_gpu.driver.launched
    assert (launched.symbol, launched.grid) == ("order_rows", (7, 1, 1))
    given = [int.from_bytes(each, "little") for each in launched.parameters[:4]]
    assert given == [IDS.data_ptr(), ends.data_ptr(), slots.data_ptr(), 6]
    routed_gpu.driver.launched.clear()
    apart, off = torch.zeros(3, 4, dtype=torch.int64)[:, :2], torch.zeros(7, dtype=torch.int64)[1:].view(3, 2)
    for like in (apart, off, IDS.short()):
        like.copy_(IDS)
        found = order_by(routed_context, OP, like, 7)(like)
        assert [each.tolist() for each in found] == [[2, 3, 3, 5, 5, 6, 6], [1, 4, 5, 0, 3, 2]]
    assert not routed_gpu.driver.launched


def test_many_rows_are_sorted(routed_context: Context, routed_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a number of rows, of which each expert's program would read all."""
    monkeypatch.setattr(row_calls, "MOST_ORDERED", 5)
    found = order_by(routed_context, OP, IDS, 7)(IDS)
    assert all(map(torch.equal, found, order_of(IDS, 7)))
    assert not routed_gpu.driver.launched


def test_scales_of_blocks_by_a_kernel(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Scales lie column by column, as products read them, whoever makes them."""
    x, types = torch.randn(32, 256).bfloat16(), ("bf16", "fp8e4m3fn")
    found, scale = quantize_by(routed_context, OP, -1, 32, 256, types, "blocks")(x)
    (launched,) = routed_gpu.driver.launched
    assert (launched.symbol, launched.grid) == ("quantize_blocks", (32, 1, 1))
    given = [int.from_bytes(each, "little") for each in launched.parameters[:5]]
    assert given == [x.data_ptr(), found.data_ptr(), scale.data_ptr(), 32, 256]
    forms = (scale.shape, scale.stride()), (found.shape, found.stride(), found.dtype)
    by_torch, of_torch = quantize_by(routed_context, OP, -1, 32, 256, types, "per_tensor")(x)
    assert (of_torch.shape, len(routed_gpu.driver.launched)) == ((1,), 1)
    untold = Context(lambda op: [], lambda index: None)
    by_torch, of_torch = quantize_by(untold, OP, -1, 32, 256, types, "blocks")(x)
    assert forms == ((of_torch.shape, of_torch.stride()), (by_torch.shape, by_torch.stride(), by_torch.dtype))
    assert torch.equal(of_torch, quantized(x, torch.float8_e4m3fn, "blocks")[1])


def test_a_launch_that_fails_leaves_pytorch(
    routed_context: Context, routed_gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on, said once; so does a kernel that cannot be loaded."""
    caplog.set_level(logging.INFO, "genkern")
    order = order_by(routed_context, OP, IDS, 7)
    routed_gpu.driver.fails = True
    for _ in range(2):
        assert all(map(torch.equal, order(IDS), order_of(IDS, 7)))
    routed_gpu.driver.fails, routed_gpu.driver.refuses = False, ("order_rows",)
    assert all(map(torch.equal, order_by(routed_context, OP, IDS, 7)(IDS), order_of(IDS, 7)))
    assert [record.message.count("PyTorch's calls serve it") for record in caplog.records] == [1, 1]
    assert not routed_gpu.driver.launched
