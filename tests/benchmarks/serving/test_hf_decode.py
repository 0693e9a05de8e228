"""Tests of hf_decode.py: what is compared, and a whole run without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from layers_sharing_x import Bench
from long_tests import long_only
from stand_ins import cpu_place

from benchmarks.serving import hf_decode, llama
from benchmarks.serving.hf_decode import Timed, report
from benchmarks.serving.llama import Case, Step, Transformers, warmed
from benchmarks.serving.llama_model import Shape
from genkern.runtime.linear import Patch, patch_model

TIMES = {"library eager": 0.02, "genkern eager": 0.016, "library graph": 0.01, "genkern graph": 0.008}
UNGATED = {"genkern ungated eager": 0.018, "genkern ungated graph": 0.009}
LINEARS = {"library linear layers": 0.004}
SHAPE = Shape(hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocabulary=50, layers=2)
BY_COMPILE = {"compiled graph": 0.009, "compiled genkern graph": 0.0075}


def test_figures_are_ratios_to_the_patched_model() -> None:
    """Others' time over the patched model's, each in its own way."""
    said = report(
        [Timed(1, {**TIMES, **BY_COMPILE, **LINEARS, **UNGATED}, 9, 4, 0.01, 2), Timed(16, TIMES, 9, 4, 0.01)],
        2,
        {"seconds": 3.0},
    )
    lines = said.splitlines()
    assert (
        lines[2]
        == "| 1 | 20.000 | 16.000 | 18.000 | 10.000 | 8.000 | 9.000 | 4.000 | 9.000 | 7.500 | 9 | 4 | 2 | 0.0100 |"
    )
    assert lines[3] == "| 16 | 20.000 | 16.000 | - | 10.000 | 8.000 | - | - | - | - | 9 | 4 | 0 | 0.0100 |"
    assert lines[-10:] == [
        *("hf_decode_1: 1.250", "hf_eager_1: 1.250", "hf_ungated_1: 1.111", "hf_ungated_eager_1: 1.111"),
        "hf_linears_share_1: 0.400",
        *("hf_over_compiled_1: 1.125", "hf_compiled_patched_1: 1.200"),
        *("hf_decode_16: 1.250", "hf_eager_16: 1.250", "seconds: 3.000"),
    ]


def test_a_compiled_capture_that_fails_costs_its_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What went before is told, and what went wrong first."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(llama, "LOOP_S", 0.0)
    builder = Bench([(128, 64), (192, 64)], rows=(1,))
    steps = Transformers(SHAPE, "cpu", 64)

    def refused(call: Callable[[], Any]) -> Callable[[], Any]:
        try:
            raise ValueError("compiled inside")
        finally:
            raise RuntimeError("previous error during capture")

    with torch.no_grad():
        found = hf_decode.timed(
            cpu_place(),
            steps,
            lambda model, **own: patch_model(model, builder.gemm, builder.context, **own),
            1,
            1,
            refused,
            lambda step: step,
        )
    assert set(found.times_s) == {*TIMES, *LINEARS}
    said = capsys.readouterr().err
    assert said.count("torch.compile") == 2
    assert said.count("ValueError: compiled inside") == 2


@long_only("compiles a model twice")
@torch.no_grad()
def test_a_static_cache_is_compiled_twice() -> None:
    """Before it is captured, though its second call is the first that finds its tensors."""
    pytest.importorskip("transformers")
    steps = Transformers(SHAPE, "cpu", 64)
    torch.compiler.reset()
    assert warmed(steps.step(Case(1, 1), torch.compile(steps.model, backend="eager"))) > 3  # type: ignore[arg-type]


def test_a_step_that_is_always_compiled_is_not_captured() -> None:
    """It ends in an error that says so."""
    torch.compiler.reset()
    sizes = iter(range(1, 100))
    call = torch.compile(lambda x: x + 1, backend="eager", dynamic=False)
    with pytest.raises(RuntimeError, match="still compiled"), torch._dynamo.config.patch(recompile_limit=100):
        warmed(lambda: call(torch.ones(next(sizes))))


def test_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group is one launch a layer, and the bundle covers what it has winners for."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("GENKERN_CONFIG", "")
    monkeypatch.setattr(llama, "LOOP_S", 0.0)
    builder = Bench([(128, 64), (192, 64)], rows=(1, 3), gate=True)
    monkeypatch.setattr(hf_decode, "read_bundle", lambda path: builder.context._bundles_of("a16w16")[0])

    def patch(model: torch.nn.Module, **own: bool) -> Patch:
        return patch_model(model, builder.gemm, builder.context, **own)

    argv = ["x.genkern", "--layers", "2", "--batches", "1,3", "--context", "64", "--rounds", "1", "--ungated"]
    calls: list[int] = []

    def capture(step: Step) -> Step:
        """As on a GPU, but that a replay is a call: it may not compile either."""
        calls.append(warmed(step))
        with torch.compiler.set_stance("fail_on_recompile"):
            step()
        return step

    def by_compile(call: Callable[[], Any]) -> Callable[[], Any]:
        return torch.compile(call, backend="eager", fullgraph=True)

    torch.compiler.reset()
    text = hf_decode.run(cpu_place(), [*argv, "-o", str(tmp_path / "said")], patch, SHAPE, capture, by_compile)
    assert text + "\n" == (tmp_path / "said").read_text()
    assert calls == [3, 3, 3, 3, 3, 3, 3, 3, 4, 4]
    assert "hf_compiled_patched_1: " in text
    assert "hf_over_compiled_3" not in text
    assert {tuple(line.split(" | ")[-3:-1]) for line in text.splitlines()[2:4]} == {("4", "2")}
    assert "hf_ungated_eager_3: " in text
    share = float(next(line for line in text.splitlines() if line.startswith("hf_covered_share")).split()[1])
    assert 0.5 < share < 0.8
    assert builder.launches() >= 2 * 4
