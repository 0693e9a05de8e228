"""Tests of benchmarks/kernels/moe.py and moe_layer.py: which rows are layers, what vLLM ships, and what is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.kernels.moe import BALANCED, DEEP_GEMM, GROUPED_MM, OURS, VLLM, Race, even_rows, report, written_error
from benchmarks.kernels.moe_layer import layers_of, skewed_layers, spread, vllm_configs
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.kernels.legality import legal
from genkern.result.result import Result

torch = pytest.importorskip("torch")
CONFIG = Config("tiled", 16, 64, 64, 1, 1, 4, 3)
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"


def stages(
    tokens: int, experts: int, top_k: int, width: int, hidden: int, types: tuple[str, ...], *more: object
) -> list[Result]:
    """Rows of both stages."""
    own = tuple(sorted((("experts", experts), ("top_k", top_k), *more)))  # type: ignore[type-var]
    gate = tuple(sorted((*own, ("stage", "gate_up"))))
    problems = (
        GemmProblem(tokens, width, hidden, "fused_moe", *types, activation="silu", own=gate),
        GemmProblem(tokens, hidden, width, "fused_moe", *types, own=own),
    )
    return [Result(problem, CONFIG) for problem in problems]


def test_layers_are_pairs() -> None:
    """Both stages of the same tokens, whatever their order; what has no other half is left out."""
    rows = [
        *stages(64, 8, 2, 14336, 4096, ("bf16",) * 3),
        *stages(64, 256, 8, 256, 7168, FP8, ("scales", "blocks"))[::-1],
    ]
    rows.append(Result(replace(rows[0].problem, M=65), CONFIG))
    first, second = layers_of(rows)
    assert (first.gate_up, first.down) == (rows[0].problem, rows[1].problem)
    assert second.what == "64 tokens, 256 experts, top 8, hidden 7168, width 256, fp8e4m3fn blocks"


def test_what_vllm_ships_is_found_and_legal() -> None:
    """By the nearest number of tokens; half as wide for gate and up side by side; nothing where it ships nothing."""
    mixtral, deepseek, other = layers_of(
        [
            *stages(70, 8, 2, 14336, 4096, ("bf16",) * 3),
            *stages(4096, 256, 8, 256, 7168, FP8, ("scales", "blocks")),
            *stages(64, 256, 8, 256, 7168, ("bf16",) * 3),
        ]
    )
    assert vllm_configs(mixtral) == (
        Config("tiled", 32, 64, 128, 64, 1, 4, 3),
        Config("tiled", 32, 128, 128, 64, 1, 4, 3),
    )
    assert vllm_configs(other) is None
    for layer in (mixtral, deepseek):
        found = vllm_configs(layer)
        assert found is not None
        for problem, config in zip((layer.gate_up, layer.down), found, strict=True):
            assert not legal(problem, config, gpu_for_arch("sm_90"))


def test_layers_on_skewed_routing() -> None:
    """By winners tuned on it, beside those of balanced routing; by these where there are no others."""
    other = replace(CONFIG, BLOCK_SIZE_M=32)
    bf16 = "bf16", "bf16", "bf16"
    tuned = [replace(row, config=other) for row in stages(64, 8, 2, 256, 512, bf16, ("routing", "skewed"))]
    alone = stages(2, 8, 2, 256, 512, bf16, ("routing", "skewed"))
    layers = layers_of([*tuned, *alone, *stages(64, 8, 2, 256, 512, bf16), *stages(1, 8, 2, 256, 512, bf16)])
    found = {layer.gate_up.M: layer for layer in skewed_layers(layers)}
    assert len(layers) == 4
    assert {m: (layer.configs[0], layer.balanced) for m, layer in found.items()} == {
        64: (other, (CONFIG, CONFIG)),
        1: (CONFIG, (CONFIG, CONFIG)),
        2: (CONFIG, None),
    }
    assert (found[64].gate_up, found[64].down) == (tuned[0].problem, tuned[1].problem)
    assert all(layer.what.endswith("bf16, skewed") for layer in found.values())


def test_even_rows() -> None:
    """All rows are some group's, and DeepGEMM's groups begin where it asks for."""
    problem = GemmProblem(1024, 64, 64, "grouped_gemm", own=(("groups", 4),))
    assert even_rows(problem, "cpu").tolist() == [256, 512, 768, 1024]
    assert even_rows(replace(problem, M=10), "cpu").tolist() == [3, 6, 9, 10]


def test_rows_that_nobody_writes_are_not_compared() -> None:
    """Those of the reference that are NaN; a wrong one among the others counts."""
    expected = torch.tensor([[1.0, 2.0], [float("nan")] * 2])
    assert written_error(torch.tensor([[1.0, 2.0], [5.0, 5.0]]), expected) == 0
    assert written_error(torch.tensor([[1.0, 9.0], [5.0, 5.0]]), expected) == 0.5


def test_scales_of_elements() -> None:
    """One for all, of rows, and of blocks that overhang."""
    weight = torch.zeros(200, 130)
    assert spread(torch.full((1, 1), 2.0), weight).tolist() == [[2.0]]
    assert spread(torch.arange(200.0)[None], weight).shape == (200, 1)
    blocks = spread(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), weight)
    assert (blocks[127, 127], blocks[128, 127], blocks[127, 129], blocks[199, 129]) == (1, 3, 2, 4)


def test_report() -> None:
    """The best other over genkern; who did not run leaves a cell empty, and no key is made of nothing."""
    races = [
        Race("A", "grouped", {OURS: 10.0, GROUPED_MM: 12.0, DEEP_GEMM: 11.0}),
        Race("B", "grouped", {OURS: 10.0, GROUPED_MM: 9.0}),
        Race("C", "layer", {OURS: 50.0, VLLM: 60.0}),
        Race("D", "layer", {VLLM: 60.0}),
    ]
    text = report(races)
    assert "| A | 10.0 | 11.0 | 12.0 | 1.100 |" in text
    assert "| B | 10.0 |  | 9.0 | 0.900 |" in text
    assert "grouped_over_deepgemm: 1.100 (least 1.100, 1 of them)" in text
    assert "fused_moe_over_best_peer: 1.200 (least 1.200, 1 of them)" in text
    assert "| D |" not in text
    assert report([]) == ""
    races.append(Race("E", "layer", {OURS: 50.0, BALANCED: 55.0, VLLM: 60.0}))
    assert "| E | 50.0 | 55.0 | 60.0 |  |  | 1.200 |" in report(races)
