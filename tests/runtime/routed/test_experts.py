"""Tests of genkern.runtime.routed.experts: a whole mixture of experts, against a loop over experts in float32."""

from __future__ import annotations

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.errors import InputError
from genkern.runtime.context import Context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.order import quantized


def layer(tokens: int, experts: int = 8, top_k: int = 2, n: int = 128, k: int = 256) -> tuple[torch.Tensor, ...]:
    """x, gate_up, down, routing weights and ids."""
    torch.manual_seed(0)
    ids = torch.rand(tokens, experts).topk(top_k).indices
    return (
        torch.randn(tokens, k).bfloat16(),
        (torch.randn(experts, 2 * n, k) / 16).bfloat16(),
        (torch.randn(experts, k, n) / 16).bfloat16(),
        torch.rand(tokens, top_k).softmax(-1),
        ids,
    )


def by_loop(
    x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
) -> torch.Tensor:
    """In float32, token by token."""
    n = down.shape[2]
    out = torch.zeros_like(x, dtype=torch.float32)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], ids[token], strict=True):
            both = gate_up[expert].float() @ x[token].float()
            out[token] += weight * (down[expert].float() @ (torch.nn.functional.silu(both[:n]) * both[n:]))
    return out


def test_both_winners_are_launched(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """The first product, the second, and the sum over experts, which starts early."""
    out = Experts("fused_moe", routed_context)(*layer(16))
    assert out.shape == (16, 256)
    launched = routed_gpu.driver.launched
    names = [each.symbol.partition("_BM")[0] for each in launched]
    assert names == ["order_rows", "matmul_tiled_mask_m", "matmul_tiled_mask_m", "sum_slots_B1024"]
    assert [each.starts_early for each in launched] == [False, False, False, True]


@pytest.mark.parametrize("tokens", [1, 33])
def test_against_a_loop(untuned: Context, tokens: int) -> None:
    """As the library computes it, to what bfloat16 rounds."""
    given = layer(tokens)
    found, wanted = Experts("fused_moe", untuned)(*given).float(), by_loop(*given)
    assert (found - wanted).norm() < 2**-7 * wanted.norm()
    assert Experts("fused_moe", untuned)(given[0][:0], *given[1:3], given[3][:0], given[4][:0]).shape == (0, 256)


@pytest.mark.parametrize("scales", ["per_tensor", "per_token", "blocks"])
def test_8_bits(untuned: Context, scales: str) -> None:
    """Quantised activations and weights: within what fp8's three bits cost."""
    x, gate_up, down, weights, ids = layer(20)
    narrow, of = [], []
    for weight in (gate_up, down):
        experts, rows, columns = weight.shape
        if scales == "blocks":
            tiles = weight.float().view(experts, rows // 128, 128, columns // 128, 128)
            scale = tiles.abs().amax((2, 4)) / 448
            spread = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        else:
            scale = weight.float().abs().amax((1, 2) if scales == "per_tensor" else 2) / 448
            scale = scale.view(experts, 1, 1) if scales == "per_tensor" else scale.view(experts, 1, rows)
            spread = scale if scales == "per_tensor" else scale.mT
        narrow.append((weight.float() / spread).to(torch.float8_e4m3fn))
        of.append(scale)
    found = Experts("fused_moe", untuned)(x, *narrow, weights, ids, *of).float()
    wanted = by_loop(x, gate_up, down, weights, ids)
    assert 0 < (found - wanted).norm() < 2**-3.5 * wanted.norm()
    assert quantized(x, torch.float8_e4m3fn, scales)[1].dtype == torch.float32


def test_what_does_not_belong_together(untuned: Context) -> None:
    """In one line."""
    moe, (x, gate_up, down, weights, ids) = Experts("fused_moe", untuned), layer(4)
    for given, reason in (
        ((x, gate_up, down.mT, weights, ids), "down .experts, K, N"),
        ((x, gate_up, down, weights[:, :1], ids), "both routing_weights and ids"),
        ((x.to(torch.float8_e4m3fn), gate_up, down, weights, ids), "give x in 16 bits"),
        ((x, gate_up.to(torch.float8_e4m3fn), down.to(torch.float8_e4m3fn), weights, ids), "need gate_up_scale"),
    ):
        with pytest.raises(InputError, match=reason):
            moe(*given)
    with pytest.raises(InputError, match="a gate needs an activation"):
        moe(x, gate_up, down, weights, ids, activation="none")
