"""weight_only.py and humming_peer.py without a GPU: the same weights for everyone, and what is reported."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.common.workbench import Bench
from benchmarks.kernels import humming_peer
from benchmarks.kernels.humming_peer import Weights, packed, weights_of
from benchmarks.kernels.weight_only import HUMMING, OURS, TORCH, Race, report, torch_call, weights_said, wide_weights
from genkern.gemm.problem import GemmProblem
from genkern.kernels.generate import generate
from genkern.kernels.source import load_module

torch = pytest.importorskip("torch")
INT4 = GemmProblem(4, 96, 256, "a16w4", "bf16", "int8", "bf16", own=(("group", 128), ("scale_type", "bf16")))
MXFP4 = replace(INT4, own=(("weights", "mxfp4"),))
INT8 = GemmProblem(4, 96, 256, "a16w8", "bf16", "int8", "bf16", own=(("scale_type", "bf16"),))
FP8 = replace(INT8, dtype_b="fp8e4m3fn")
ALL = {"int4": INT4, "mxfp4": MXFP4, "int8": INT8, "fp8": FP8}


def made(problem: GemmProblem, folder: Any) -> Any:
    """The generated module of a problem."""
    (folder / "gemm.py").write_text(generate(problem, [], "sm_90").text)
    return load_module(str(folder / "gemm.py"))


def bench_of(problem: GemmProblem, folder: Any) -> Any:
    """A bench on the CPU, without candidates."""
    module = made(problem, folder)
    operands = module.make_operands("cpu", 3)
    budget = SimpleNamespace(rotating_mb=0.1)
    gemm = SimpleNamespace(
        operands=operands,
        operands_of=lambda copy: operands,
        module=module,
        session=SimpleNamespace(problem=problem, budget=budget),
    )
    return Bench(problem, gemm, {}, None, None)  # type: ignore[arg-type]


def as_humming_reads(kind: Weights, weight: Any, scale: Any) -> Any:
    """What Humming's dequantize_weight makes of packed weights [N, K] (humming/utils/weight.py), in float32."""
    bits = int("".join(filter(str.isdigit, kind.b_dtype.partition("e")[0]))) if "float" in kind.b_dtype else 0
    bits = bits or int(kind.b_dtype.removeprefix("uint"))
    codes = torch.stack([weight >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)], -1).flatten(1)
    if kind.b_dtype.startswith("uint"):
        numbers = codes.float() - (1 << bits - 1)
    elif bits == 8:
        numbers = codes.to(torch.uint8).view(torch.float8_e4m3fn).float()
    else:
        magnitudes = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        numbers = torch.cat((magnitudes, -magnitudes))[codes]
    return numbers * scale.float().repeat_interleave(numbers.shape[1] // scale.shape[1], 1)


@pytest.mark.parametrize("name", ALL)
def test_everyone_has_the_same_weights(name: str, tmp_path: Any) -> None:
    """torch.mm the numbers that genkern's weights stand for, in bf16; Humming those weights, to the bit."""
    problem = ALL[name]
    module = made(problem, tmp_path)
    operands = module.make_operands("cpu", 3)
    wide = wide_weights(problem, operands)
    product = operands["a"].float() @ wide.float().T
    assert (product - module.reference(operands)).norm() <= 2**-8 * product.norm()
    kind = weights_of(problem)
    weight, scale = packed(kind, operands["b"], operands["scale_b"])
    assert (weight.dtype, weight.is_contiguous(), scale.is_contiguous()) == (torch.int32, True, True)
    assert torch.equal(as_humming_reads(kind, weight, scale).to(torch.bfloat16), wide)


@pytest.mark.parametrize("name", ALL)
def test_torch_computes_the_same_product(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of weights in bf16, whichever copy is used; it stays in the race."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench = bench_of(ALL[name], tmp_path)
    call = torch_call(bench)
    assert list(bench.agreeing({TORCH: call, "third copy": lambda copy: call(2)})) == [TORCH, "third copy"]


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (replace(INT4, own=(("group", 128),)), "scales are bf16"),
        (replace(INT8, own=()), "scales are bf16"),
        (replace(INT4, bias=True), "neither bias"),
        (replace(INT8, row_major_b=True), "not asked for"),
        (GemmProblem(4, 96, 256), "not asked for"),
    ],
)
def test_what_humming_is_not_compared_on(problem: GemmProblem, why: str) -> None:
    """Said before anything is laid out."""
    with pytest.raises(ValueError, match=why):
        weights_of(replace(problem, dtype_a="bf16", dtype_c="bf16"))


def test_compiling_without_the_wheel_is_one_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Humming is optional: what is missing is said."""
    monkeypatch.setitem(sys.modules, "humming", None)
    (tmp_path / "sizes.yaml").write_text("- {M: 1, N: 64, K: 64, op: a16w8, scale_type: bf16}\n")
    with pytest.raises(SystemExit, match="Humming is not there: "):
        humming_peer.main([str(tmp_path / "sizes.yaml")])


def test_what_a_row_is_called() -> None:
    """By its weights and how many have a scale in common."""
    assert [weights_said(each) for each in ALL.values()] == ["int4, 128", "mxfp4, 32", "int8", "fp8e4m3fn"]


def test_report() -> None:
    """A key for each format; Humming's is of few rows, and of who ran."""
    races = [
        Race("a16w4", "int4, 128", "1x2x3", 1, "c", {OURS: 10.0, TORCH: 40.0, HUMMING: 11.0}),
        Race("a16w4", "int4, 128", "64x2x3", 64, "c", {OURS: 10.0, TORCH: 10.0, HUMMING: 5.0}),
        Race("a16w8", "int8", "1x2x3", 1, "c", {OURS: 10.0, TORCH: 20.0}),
        Race("a16w8", "int8", "4x2x3", 4, "c", {TORCH: 20.0}),
    ]
    text = report(races)
    assert "| a16w4 int4, 128 | 1x2x3 | 10.00 | 40.00 | 11.00 | 4.000 | 1.100 | c |" in text
    assert "a16w4_over_bf16: 2.000 (least 1.000, 2 of them)" in text
    assert "a16w4_over_humming: 1.100 (least 1.100, 1 of them)" in text
    assert text.endswith("a16w8_over_bf16: 2.000 (least 2.000, 1 of them)")
