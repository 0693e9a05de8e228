"""Tests of hf_batching.py: a patched model in transformers' own server, without a GPU."""

from __future__ import annotations

import pytest
from layers_sharing_x import Bench
from stand_ins import cpu_place

from benchmarks.serving import hf_batching
from benchmarks.serving.hf_batching import prompts, report, same_share
from benchmarks.serving.llama_model import Shape
from genkern.runtime.linear import Patch, patch_model

SHAPE = Shape(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocabulary=50, layers=2)


def test_keys() -> None:
    """Medians over each other; tokens that both answered."""
    said = report({"library": [3.0, 1.0, 2.0], "genkern": [1.0, 1.6, 1.7]}, 320, 0.5, Patch(lambda: None, ("a",)))
    lines = said.splitlines()
    assert lines[2:4] == ["| library | 160 | 2.00 |", "| genkern | 200 | 1.60 |"]
    assert lines[-3:] == ["1 layers patched, 0 groups, 0 gated", "hf_batching: 1.250", "hf_batching_same_tokens: 0.500"]
    assert same_share([[1, 2], [3]], [[1, 4], [3]]) == pytest.approx(2 / 3)


def test_prompts_have_several_lengths() -> None:
    """From a quarter on, and the same each time."""
    asked = prompts(20, 16, 50)
    assert asked == prompts(20, 16, 50)
    assert {4, 16} >= {min(map(len, asked)), max(map(len, asked))} or len(set(map(len, asked))) > 5
    assert all(0 <= token < 50 for prompt in asked for token in prompt)


def test_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's threads call winners, and the kernel of gated rows; requests are answered alike."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("GENKERN_CONFIG", "")
    bench = Bench([(128, 64), (192, 64)], rows=(1, 2, 3, 16), gate=True)
    monkeypatch.setattr(hf_batching, "read_bundle", lambda path: None)

    def patch(model):  # type: ignore[no-untyped-def]
        return patch_model(model, bench.gemm, bench.context)

    argv = ["x.genkern", "--layers", "2", "--requests", "2", "--prompt", "4", "--tokens", "3", "--rounds", "1"]
    text = hf_batching.run(cpu_place(), argv, patch, SHAPE)
    assert "10 layers patched, 4 groups, 2 gated" in text
    assert float(text.split("hf_batching_same_tokens: ")[1].split()[0]) > 0.5
    symbols = [each.symbol for each in bench.gpu.driver.launched]
    assert symbols.count("gate_rows") > 4
    assert len(symbols) > 3 * symbols.count("gate_rows") - 1
