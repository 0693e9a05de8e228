"""Tests of routed calls that must be batch invariant: a token's result does not hang on who shares its expert."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from recording_gpu import FakeGpu
from test_experts import layer
from test_experts_modules import model
from test_grouped import ENDS, weights

from genkern.errors import InvarianceError
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.configuration import OFF, STRICT
from genkern.runtime.calls.context import Context
from genkern.runtime.experts_modules import patch_experts, report_experts
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped


@pytest.fixture
def context(routed_bundle: Bundle, routed_gpu: FakeGpu) -> Context:
    """Winners of 16-wide tiles are batch invariant; the one by TMA was chosen by its time."""
    winners = tuple(
        each if "tma" in each.config_name else replace(each, sums=each.calls[0].sums, batch_invariant=True)
        for each in routed_bundle.winners
    )
    bundle = replace(routed_bundle, contents=replace(routed_bundle.contents, winners=winners))
    return Context(lambda op: [bundle], lambda index: routed_gpu, batch_invariant=STRICT)


def test_groups_are_of_one_order(context: Context, routed_gpu: FakeGpu) -> None:
    """Of all rows that its kernels take; a winner of another order serves none, and other groups are refused."""
    gemm = Grouped("grouped_gemm", context)
    for m in (64, 10, 255):
        routed_gpu.driver.launched.clear()
        gemm(torch.randn(m, 256).bfloat16(), weights(), (ENDS.float() * m / 64).int())
        (launched,) = routed_gpu.driver.launched
        assert launched.symbol.startswith("matmul_tiled_mask_m_BM16")
    with pytest.raises(InvarianceError, match="no kernel of its order"):
        gemm(torch.randn(256, 256).bfloat16(), weights(), 4 * ENDS)
    with pytest.raises(InvarianceError, match="64x128x256 grouped_gemm"):
        gemm(torch.randn(64, 256).bfloat16(), weights(5), torch.cat((ENDS, ENDS[-1:])))


def test_experts_are_of_one_order(context: Context, routed_gpu: FakeGpu) -> None:
    """Both products, of any number of tokens; another number of experts of a token is another layer."""
    moe = Experts("fused_moe", context)
    for tokens in (1, 16, 40):
        routed_gpu.driver.launched.clear()
        moe(*layer(tokens))
        names = [each.symbol.partition("_BM")[0] for each in routed_gpu.driver.launched]
        assert names.count("matmul_tiled_mask_m") == 2
    with pytest.raises(InvarianceError, match="fused_moe"):
        moe(*layer(16, top_k=3))


def test_a_scale_of_all_tokens_is_refused(context: Context) -> None:
    """One per tensor is made of whoever is there; scales of blocks are of a token alone."""
    moe, (x, gate_up, down, routing, ids) = Experts("fused_moe", context), layer(16)
    f8 = torch.float8_e4m3fn
    given = gate_up.to(f8), down.to(f8), routing, ids
    moe(x, *given, torch.rand(8, 2, 2), torch.rand(8, 2, 1))
    with pytest.raises(InvarianceError, match="per tensor"):
        moe(x, *given, torch.rand(8, 1, 1), torch.rand(8, 1, 1))


@torch.no_grad()
def test_no_experts_module_is_passed_over(context: Context, routed_gpu: FakeGpu) -> None:
    """One without rows is refused while the mode lasts, and its own again after it."""
    made = model(width=64)
    context.switch(OFF)
    x, _, _, routing, ids = layer(4)
    with patch_experts(made, "fused_moe", lambda: Experts("fused_moe", context), context):
        module = made["mlp"]["experts"]  # type: ignore[index]
        wanted = module(x, ids, routing)
        context.switch(STRICT)
        with pytest.raises(InvarianceError):
            module(x, ids, routing)
        context.switch(OFF)
        assert torch.equal(module(x, ids, routing), wanted)
    context.switch(STRICT)
    first, second = report_experts(model(), "fused_moe", context)
    assert first.sums
    assert second.sums
    assert not report_experts(made, "fused_moe", context)[0].sums
