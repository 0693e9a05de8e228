"""Tests of genkern.engines.products, layers and experts: what has winners, and what share of a model that is."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_winners import ROWS, K, N

from genkern.engines import experts, layers, winner_or_own
from genkern.engines.products import IN_BLOCKS, SCALED, WIDE, Product
from genkern.errors import InputError
from genkern.runtime.routed.experts import Experts

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def weight(n: int = N, k: int = K, dtype: Any = BF16) -> Any:
    return torch.zeros(n, k).to(dtype)


@pytest.mark.parametrize(
    ("product", "tuned"),
    [
        (lambda: Product(WIDE, weight(), BF16, BF16), ROWS),
        (lambda: Product(WIDE, weight(), BF16, BF16, bias=True), ROWS),
        (lambda: Product(SCALED, weight(dtype=FP8), FP8, BF16), ROWS),
        (lambda: Product(SCALED, weight(dtype=FP8), FP8, BF16, own=(("scales", "per_token"),)), ROWS),
        (lambda: Product(IN_BLOCKS, weight(dtype=FP8), FP8, BF16), ROWS),
        # Another size, layout, type of the result, or none that genkern has.
        (lambda: Product(WIDE, weight(2 * N), BF16, BF16), ()),
        (lambda: Product(WIDE, weight(K, N).t(), BF16, BF16), ()),
        (lambda: Product(SCALED, weight(dtype=FP8), FP8, torch.float16), ()),
        (lambda: Product(WIDE, weight(dtype=torch.float64), torch.float64, torch.float64), ()),
        (lambda: Product(SCALED, weight(), BF16, BF16), ()),
    ],
)
def test_a_product_is_served_if_its_weight_has_winners(product: Any, tuned: tuple[int, ...], gpu: Any) -> None:
    """Which M, by the weight's size, layout and types."""
    assert product().tuned() == tuned


def test_the_share_is_of_layers_and_bytes(gpu: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One line; what is served is marked, and marked anew when it is no longer."""
    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False), torch.nn.Linear(K, 3 * N, bias=False)).bfloat16()

    def layer_of(module: Any) -> Any:
        if not isinstance(module, torch.nn.Linear):
            return None
        return layers.Layer.of(module, Product(WIDE, module.weight, BF16, BF16))

    with caplog.at_level(logging.INFO, "genkern"):
        share = layers.mark("made-up", model, layer_of)
    assert caplog.messages == [
        "genkern serves 1 of 2 layers, 25.0 % of their weights' bytes (tuned for M = 1, 16, 64) of this made-up model; "
        "the engine's own code serves the others"
    ]
    assert str(share) in caplog.text
    assert [layers.is_served(each) for each in model] == [True, False]
    layers.mark("made-up", model, lambda module: layers.Layer(module, 1) if len(list(module.children())) == 0 else None)
    assert not layers.is_served(model[0])
    assert str(layers.Share.of([])) == "0 of 0 layers, 0.0 % of their weights' bytes"


def test_an_m_without_a_winner_is_the_engines(gpu: Any, launched: Any) -> None:
    """One operator in a traced program, and a choice in each of its calls; what is quantised inside likewise."""
    weight = torch.randn(N, K).to(FP8)
    of_weight, calls = torch.ones(N // 128, 1), []

    def own(x: Any, *more: Any) -> Any:
        calls.append((x.shape[0], len(more)))
        return torch.zeros(x.shape[0], N).bfloat16()

    chosen = winner_or_own.served_product("scaled", winner_or_own.scaled_product(IN_BLOCKS, BF16, {}), own)
    program = torch.compile(
        lambda x, scale: chosen([x, weight, scale, of_weight], N, BF16), dynamic=True, fullgraph=True, backend="eager"
    )
    for rows in (16, 64, 5000, 16):
        x = torch.randn(rows, K).to(FP8)
        out = program(x, torch.ones(rows, 1))
        assert launched() == (rows < 5000)
        if rows < 5000:
            torch.testing.assert_close(out, (x.float() @ weight.float().T).bfloat16(), rtol=0.02, atol=1.0)
    assert calls == [(5000, 3)]
    hook = winner_or_own.quantised_product(IN_BLOCKS, lambda x: (x.to(FP8), torch.ones(x.shape[0], 1)), {})
    of_wide = winner_or_own.served_product("quantised", hook, own)
    for rows in (16, 5000, 5000):
        of_wide([torch.randn(rows, K).to(BF16), weight, of_weight], N, BF16)
        assert launched() == (rows < 5000)
    assert calls[1:] == [(5000, 2)] * 2
    torch._dynamo.reset()


def test_a_call_with_a_bias_is_another_call(gpu: Any) -> None:
    """There are no winners of fp8 with a bias: such a call is the engine's, also after one without a bias."""
    x, weight = torch.zeros(16, K).to(FP8), torch.zeros(N, K).to(FP8)
    scales, bias = (torch.ones(16, 1), torch.ones(N // 128, 1)), torch.zeros(N).bfloat16()
    for _ in range(2):
        assert winner_or_own.has_winner(IN_BLOCKS, x, weight, None, BF16, *scales, None, {})
        assert not winner_or_own.has_winner(IN_BLOCKS, x, weight, bias, BF16, *scales, None, {})


@pytest.mark.parametrize("pattern", ["one", "o*", "256x128", "*x128"])
def test_layers_are_left_to_the_engine_by_name_or_size(
    pattern: str, gpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """GENKERN_SKIP_LAYERS; GENKERN_ENGINE_REPORT has each layer, its size, and why it is not served."""
    model = torch.nn.ModuleDict({"one": torch.nn.Linear(K, N, bias=False), "two": torch.nn.Linear(K, 3 * N)}).bfloat16()
    monkeypatch.setenv("GENKERN_SKIP_LAYERS", f"nothing, {pattern}")
    monkeypatch.setenv("GENKERN_ENGINE_REPORT", str(tmp_path / "report.json"))

    def layer_of(module: Any) -> Any:
        is_linear = isinstance(module, torch.nn.Linear)
        return layers.Layer.of(module, Product(WIDE, module.weight, BF16, BF16)) if is_linear else None

    assert layers.mark("made-up", model, layer_of).layers == 0
    assert not layers.is_served(model["one"])
    one, two = json.loads((tmp_path / "report.json").read_text())["layers"]
    assert (one["name"], one["size"], one["bytes"], one["served"]) == ("one", f"{N}x{K}", 2 * N * K, [])
    assert "GENKERN_SKIP_LAYERS" in one["why"]
    assert "winner" in two["why"]
    assert one["problems"][0]["N"] == N


def given(rows: int, width: int = 128) -> tuple[Any, ...]:
    """What a layer of experts is called with."""
    first, second = torch.randn(8, 2 * width, K).to(BF16), torch.randn(8, K, width).to(BF16)
    ids = torch.randint(0, 8, (rows, 2), dtype=torch.int32)
    return torch.randn(rows, K).to(BF16), first, second, torch.rand(rows, 2), ids


def test_experts_are_served_up_to_twice_what_was_tuned(gpu: Any, launched: Any) -> None:
    """Where both products have winners; the engine is asked for the others, as for layers that genkern has not."""
    _, first, second, _, _ = given(1)
    assert experts.tuned_for(first, second, BF16, 2) == ROWS
    assert experts.tuned_for(first, second, BF16, 3) == ()
    module = torch.nn.Module()
    module.w13_weight, module.w2_weight, module.top_k = torch.nn.Parameter(first), torch.nn.Parameter(second), 2
    layer = experts.layer_in(module, module)
    assert (layer.served, layer.size, len(layer.problems)) == (ROWS, f"8x256x{K}", 2)
    assert layer.bytes == first.nbytes + second.nbytes
    assert experts.layer_in(module, module, "another kernel").why == "another kernel"
    module.w13_weight.data, module.w2_weight.data = first.to(FP8), second.to(FP8)
    assert experts.layer_in(module, module).served == ()
    module.w13_weight_scale_inv, module.w2_weight_scale_inv = torch.ones(8, 2, 1), torch.ones(8, 1, 1)
    assert experts.layer_in(module, module).served == ROWS
    for rows, served in ((1, True), (100, True), (128, True), (129, False)):
        for _ in range(2):
            found = experts.by_winners(*given(rows))
            assert (found is not None) == served
            assert (launched() >= 2) == served
    assert experts.by_winners(*given(16, width=64)) is None
    # The shapes do not belong together.
    x, first, second, weights, ids = given(16)
    assert experts.by_winners(x, first, second[:4], weights, ids) is None
    assert launched() == 0


def test_experts_whose_bits_hang_on_no_batch(gpu: Any, mode: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within genkern.batch_invariant(), for any number of rows; what it refuses first is the engine's for all numbers,
    what it served before must not be another kernel's.
    """
    assert experts.by_winners(*given(5000), invariant=True) is not None
    assert (mode.entered, mode.depth) == (1, 0)

    def refuse(self: Any, *given: Any) -> Any:
        raise InputError("no kernels of one class")

    monkeypatch.setattr(Experts, "__call__", refuse)
    with pytest.raises(InputError, match="one class"):
        experts.by_winners(*given(16), invariant=True)
    experts._found.clear()
    for rows in (16, 64):
        assert experts.by_winners(*given(rows), invariant=True) is None
    assert mode.entered == 3
