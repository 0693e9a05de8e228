"""Tests of hf_decode.py: what is compared, and a whole run without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layers_sharing_x import Bench
from stand_ins import cpu_place

from benchmarks.serving import hf_decode, llama
from benchmarks.serving.hf_decode import Timed, report
from benchmarks.serving.llama_model import Shape
from genkern.runtime.linear import Patch, patch_model

TIMES = {"library eager": 0.02, "genkern eager": 0.016, "library graph": 0.01, "genkern graph": 0.008}
BY_COMPILE = {"compiled graph": 0.009, "compiled genkern graph": 0.0075}


def test_keys() -> None:
    """Others' time over the patched model's, each in its own way."""
    said = report([Timed(1, {**TIMES, **BY_COMPILE}, 9, 4, 0.01), Timed(16, TIMES, 9, 4, 0.01)], 2, {"seconds": 3.0})
    lines = said.splitlines()
    assert lines[2] == "| 1 | 20.000 | 16.000 | 10.000 | 8.000 | 9.000 | 7.500 | 9 | 4 | 0.0100 |"
    assert lines[3] == "| 16 | 20.000 | 16.000 | 10.000 | 8.000 | - | - | 9 | 4 | 0.0100 |"
    assert lines[-7:] == [
        *("hf_decode_1: 1.250", "hf_eager_1: 1.250", "hf_over_compiled_1: 1.125", "hf_compiled_patched_1: 1.200"),
        *("hf_decode_16: 1.250", "hf_eager_16: 1.250", "seconds: 3.000"),
    ]


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group is one launch a layer, and the bundle covers what it has winners for."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("GENKERN_CONFIG", "")
    monkeypatch.setattr(llama, "LOOP_S", 0.0)
    bench = Bench([(128, 64), (192, 64)], rows=(1, 3))
    monkeypatch.setattr(hf_decode, "read_bundle", lambda path: bench.context._bundles_of("a16w16")[0])

    def patch(model: torch.nn.Module) -> Patch:
        return patch_model(model, bench.gemm, bench.context)

    shape = Shape(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocabulary=50)
    argv = ["x.genkern", "--layers", "2", "--batches", "1,3", "--compiled", "", "--context", "16", "--rounds", "1"]
    text = hf_decode.run(cpu_place(), [*argv, "-o", str(tmp_path / "said")], patch, shape, lambda step: step)
    assert text + "\n" == (tmp_path / "said").read_text()
    assert {line.split(" | ")[-2] for line in text.splitlines()[2:4]} == {"4"}
    share = float(next(line for line in text.splitlines() if line.startswith("hf_covered_share")).split()[1])
    assert 0.5 < share < 0.8
    assert bench.launches() >= 2 * 4
