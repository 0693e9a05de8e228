"""Tests of genkern.runtime.routed.experts: a whole mixture of experts, against a loop over experts in float32."""

from __future__ import annotations

import threading

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.errors import InputError
from genkern.runtime.calls.context import Context
from genkern.runtime.launch import launcher
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


def test_what_serves_a_layer_is_found_once(
    routed_context: Context, routed_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later calls with what lies so, other routing and other tensors too, look nothing up; renew() forgets it."""
    moe, looked = Experts("fused_moe", routed_context), []
    find = routed_context.find
    monkeypatch.setattr(routed_context, "find", lambda *given: looked.append(given) or find(*given))
    for _ in range(3):
        x, gate_up, down, weights, ids = layer(16)
        moe(x, gate_up, down, weights, ids.flip(0))
    assert (len(looked), len(routed_gpu.driver.launched)) == (2, 12)
    moe(x, gate_up, down, weights.double(), ids)
    assert len(looked) == 4
    routed_context.renew()
    moe(x, gate_up, down, weights, ids)
    assert len(looked) == 6


def test_a_known_layer_goes_past_every_lookup(routed_context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its guard tells it: neither problems nor keys are made."""
    moe, given = Experts("fused_moe", routed_context), layer(16)
    for _ in range(2):
        moe(*given)
    monkeypatch.setattr(Experts, "_unknown", lambda *_: pytest.fail("asked again"))
    moe(*given)
    monkeypatch.undo()
    assert moe(given[0][:8], *given[1:3], given[3][:8], given[4][:8]).shape == (8, 256)


@pytest.mark.parametrize("native", [True, False])
def test_rows_of_8_bits_are_quantised_once(
    routed_context: Context, routed_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    """x by a kernel of the bundle, or by the caller, and what lies between the products: a launch each."""
    if not native:
        monkeypatch.setattr(launcher, "_native", None)
    moe, (x, gate_up, down, weights, ids) = Experts("fused_moe", routed_context), layer(16)
    f8 = torch.float8_e4m3fn
    given = gate_up.to(f8), down.to(f8), weights, ids, torch.rand(8, 2, 2), torch.rand(8, 2, 1)

    def names() -> list[str]:
        found = [each.symbol.partition("_BM")[0] for each in routed_gpu.driver.launched]
        routed_gpu.driver.launched.clear()
        return found

    assert moe(x, *given).dtype == torch.bfloat16
    products = "matmul_tiled_mask_m", "quantize_blocks", "matmul_tiled_mask_m", "sum_slots_B1024"
    assert names() == ["order_rows", "quantize_blocks", *products]
    for scale in (torch.rand(2, 16).T, torch.rand(16, 2)):
        moe(x.to(f8), *given, x_scale=scale)
        assert names() == ["order_rows", *products]


def test_what_a_layer_hands_on(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """The second product reads what the first one wrote, both by the same order of rows, on the call's stream."""
    x, gate_up, down, weights, ids = layer(16)
    out = Experts("fused_moe", routed_context)(x, gate_up, down, weights, ids)
    order, first, second, sums = routed_gpu.driver.launched
    assert {each.stream for each in (order, first, second, sums)} == {7}
    ends, slots = order.parameters[1:3]
    given = [[each for each in launched.parameters if len(each) == 8] for launched in (first, second)]
    a, b, c, *index = given[0]
    assert [int.from_bytes(each, "little") for each in (a, b)] == [x.data_ptr(), gate_up.data_ptr()]
    assert index[:2] == [ends, slots]
    assert given[1][0] == c
    assert {ends, slots, down.data_ptr().to_bytes(8, "little"), weights.data_ptr().to_bytes(8, "little")} < {*given[1]}
    assert out.data_ptr().to_bytes(8, "little") in sums.parameters


def test_a_layer_writes_into_a_given_tensor(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """The last kernel writes there, without a copy; the library's result is copied there if the launch fails."""
    moe, given = Experts("fused_moe", routed_context), layer(16)
    out = torch.zeros(16, 256, dtype=torch.bfloat16)
    moe.direct_into(out, *given, None, None, "silu", None, None, None, {})
    *_, sums = routed_gpu.driver.launched
    assert out.data_ptr().to_bytes(8, "little") in sums.parameters
    routed_gpu.driver.fails = True
    moe.direct_into(out, *given, None, None, "silu", None, None, None, {})
    torch.testing.assert_close(out.float(), by_loop(*given), rtol=0.03, atol=0.03)


def test_the_librarys_layer_is_written_into_a_given_tensor(untuned: Context) -> None:
    """Also into a tensor whose rows have gaps."""
    given, wide = layer(16), torch.zeros(16, 512, dtype=torch.bfloat16)
    Experts("fused_moe", untuned).direct_into(wide[:, :256], *given, None, None, "silu", None, None, None, {})
    torch.testing.assert_close(wide[:, :256].float(), by_loop(*given), rtol=0.03, atol=0.03)
    assert not wide[:, 256:].any()


def test_a_capture_has_memory_of_its_own(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Of what is kept for eager calls nothing goes into a graph, and a graph is captured with what its warm-up had."""
    moe, given = Experts("fused_moe", routed_context), layer(16)
    moe(*given)
    eager = routed_gpu.driver.launched[-1].parameters
    routed_gpu.driver.launched.clear()
    routed_gpu.driver.capturing = 5
    routed_context.renew()
    routed_gpu.driver.refuses = ("order_rows", "sum_slots_B1024")
    moe(*given)
    captured = routed_gpu.driver.launched[-1].parameters
    assert len(routed_gpu.driver.launched) == 4
    (temporary,) = routed_gpu.temporaries
    assert temporary.data_ptr().to_bytes(8, "little") in captured
    assert temporary.data_ptr().to_bytes(8, "little") not in eager


def test_threads_share_nothing_but_what_was_found(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """Each has the partial sums of its call for itself."""
    moe, given, sums = Experts("fused_moe", routed_context), layer(16), set()
    together = threading.Barrier(3)

    def work() -> None:
        together.wait(10)
        for _ in range(5):
            moe(*given)
        together.wait(10)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [each for each in routed_gpu.driver.launched if each.symbol.startswith("sum_slots")]
    sums = {each.parameters[0] for each in found}
    assert (len(found), len(sums)) == (15, 3)


@pytest.mark.parametrize("tokens", [1, 33])
def test_against_a_loop(untuned: Context, tokens: int) -> None:
    """As the library computes it, to what bfloat16 rounds."""
    given = layer(tokens)
    found, wanted = Experts("fused_moe", untuned)(*given).float(), by_loop(*given)
    assert (found - wanted).norm() < 2**-7 * wanted.norm()
    none = Experts("fused_moe", untuned)(given[0][:0], *given[1:3], given[3][:0], given[4][:0])
    assert (none.shape, none.dtype) == ((0, 256), torch.bfloat16)


def test_all_tokens_to_few_experts(untuned: Context) -> None:
    """Experts without a token cost nothing, and are not read."""
    x, gate_up, down, weights, ids = layer(9)
    gate_up[2:] = down[2:] = float("nan")
    ids = torch.tensor([[0, 1]]).expand(9, 2)
    found = Experts("fused_moe", untuned)(x, gate_up, down, weights, ids).float()
    wanted = by_loop(x, gate_up, down, weights, ids)
    assert (found - wanted).norm() < 2**-7 * wanted.norm()


def test_tokens_to_no_expert(untuned: Context) -> None:
    """Whatever number says it: a weight of zero adds nothing, and other tokens get what they get without these."""
    x, gate_up, down, weights, ids = layer(9)
    wanted = by_loop(x, gate_up, down, weights, ids)
    for place, number in ((0, -1), (4, 8), (5, 1000)):
        weights[place, 1] = 0
        wanted[place] = by_loop(x[place][None], gate_up, down, weights[place][None, :1], ids[place][None, :1])
        ids[place, 1] = number
    found = Experts("fused_moe", untuned)(x, gate_up, down, weights, ids).float()
    assert (found - wanted).norm() < 2**-7 * wanted.norm()


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
    moe = Experts("fused_moe", untuned)
    found = moe(x, *narrow, weights, ids, *of).float()
    # The same of an x that was quantised beforehand.
    x8, x_scale = quantized(x, torch.float8_e4m3fn, scales)
    assert torch.equal(moe(x8, *narrow, weights, ids, *of, x_scale=x_scale).float(), found)
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
