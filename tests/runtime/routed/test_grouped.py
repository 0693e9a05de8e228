"""Tests of genkern.runtime.routed.grouped: rows in groups by winners, and by the library."""

from __future__ import annotations

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.errors import InputError
from genkern.runtime.calls.context import Context
from genkern.runtime.routed.grouped import Grouped

ENDS = torch.tensor([10, 10, 40, 64], dtype=torch.int32)


def weights(groups: int = 4, n: int = 128, k: int = 256) -> torch.Tensor:
    return torch.randn(groups, n, k).bfloat16()


def test_winners_are_launched(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Contiguous and masked rows by their winners, and an M that nobody tuned by the nearest one's."""
    gemm, weight = Grouped("grouped_gemm", routed_context), weights()
    for m, symbol in (
        (64, "matmul_tiled_mask_m_BM16"),
        (256, "matmul_tiled_tma_mask_m_BM64"),
        (5000, "matmul_tiled_tma_mask_m_BM64"),
    ):
        routed_gpu.driver.launched.clear()
        out = gemm(torch.randn(m, 256).bfloat16(), weight, (ENDS.float() * m / 64).int())
        (launched,) = routed_gpu.driver.launched
        assert launched.symbol.startswith(symbol)
        assert out.shape == (m, 128)
    # As many tiles as there may be.
    assert launched.grid == ((5000 + 4 * 63) // 64 * 2, 1, 1)
    routed_gpu.driver.launched.clear()
    out = gemm(
        torch.randn(4, 32, 256).bfloat16(), weight, torch.tensor([3, 0, 32, 9], dtype=torch.int32), expected_m=16
    )
    (launched,) = routed_gpu.driver.launched
    assert out.shape == (4, 32, 128)
    assert launched.grid == (2 * 4 * 2, 1, 1)


def test_scales_are_passed_as_they_lie(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Scales of blocks, in both orders of memory; the second call is prepared already."""
    gemm = Grouped("grouped_gemm", routed_context)
    x, weight = torch.randn(64, 256).to(torch.float8_e4m3fn), weights().to(torch.float8_e4m3fn)
    for scale_a in (torch.rand(64, 2), torch.rand(2, 64).T):
        assert gemm(x, weight, ENDS, scale_a, torch.rand(4, 1, 2)).dtype == torch.bfloat16
    assert [launched.symbol[:12] for launched in routed_gpu.driver.launched] == ["matmul_tiled"] * 2


@pytest.mark.parametrize("masked", [False, True])
def test_the_library_serves_the_rest(untuned: Context, masked: bool) -> None:
    """Group after group; no rows give none."""
    gemm, weight = Grouped("grouped_gemm", untuned), weights()
    if masked:
        x, rows = torch.randn(4, 8, 256).bfloat16(), torch.tensor([8, 0, 3, 5], dtype=torch.int32)
        out = gemm(x, weight, rows, activation="relu")
        for group, count in enumerate(rows.tolist()):
            wanted = (x[group, :count].float() @ weight[group].float().T).relu().bfloat16()
            assert torch.equal(out[group, :count], wanted)
        return
    x = torch.randn(64, 256).bfloat16()
    out, start = gemm(x, weight, ENDS), 0
    for group, end in enumerate(ENDS.tolist()):
        assert torch.equal(out[start:end], (x[start:end].float() @ weight[group].float().T).bfloat16())
        start = end
    assert gemm(x[:0], weight, ENDS * 0).shape == (0, 128)


def test_what_does_not_belong_together(untuned: Context) -> None:
    """In one line."""
    gemm, weight, x = Grouped("grouped_gemm", untuned), weights(), torch.randn(64, 256).bfloat16()
    eight = x.to(torch.float8_e4m3fn), weight.to(torch.float8_e4m3fn)
    for given, reason in (
        ((x[:, :64], weight, ENDS), "groups, N, K"),
        ((torch.zeros(3, 2, 256).bfloat16(), weight, ENDS), "other groups than"),
        ((x, weight, ENDS.long()), "ends is .4. of int64, not .4. of int32"),
        ((x, weight, ENDS[:3]), "ends is"),
        ((x, weight, ENDS, torch.ones(1), None), "no scales"),
        ((*eight, ENDS), "scale_a is missing"),
        ((*eight, ENDS, torch.ones(1), torch.ones(3)), "scale_b is .3."),
        ((x.to(torch.complex64), weight, ENDS), "use one of"),
    ):
        with pytest.raises(InputError, match=reason):
            gemm(*given)
