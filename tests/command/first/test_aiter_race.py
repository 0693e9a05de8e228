"""Tests of command/first/aiter_race.py and the formats' aiter.py, against a stub with AITER's signatures."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lt_problems import expected_of, operands_of

from genkern.command.first import aiter_race
from genkern.command.first.aiter_race import Timed, calls_of, main, timed
from genkern.gemm.problem import GemmProblem
from genkern.profiling.checking.verdict import Subject

PLAIN = GemmProblem(16, 32, 64)
ROWS = GemmProblem(16, 32, 64, op="a8w8", dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz", own=(("scales", "per_token"),))
BLOCKS = GemmProblem(16, 256, 512, op="a8w8_blockscale", dtype_a="fp8e4m3fnuz", dtype_b="fp8e4m3fnuz")


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.shape[1] == b.shape[1], "weights as [N, K]"
    assert b.is_contiguous()
    return a.float() @ b.float().T


def gemm_a16w16_asm(A: Any, B: Any, out: Any, bias: Any = None, splitK: Any = None, kernelName: Any = None,
                    bpreshuffle: bool = False) -> Any:  # fmt: skip
    assert (splitK, bpreshuffle) == (1, False)
    if kernelName == "refused":
        raise RuntimeError("no such kernel")
    return out.copy_(product(A, B) + (kernelName == "wrong") + (0 if bias is None else bias.float()))


def gemm_a8w8_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any, bias: Any = None, splitK: int = 0) -> Any:
    assert (x_scale.shape[1], w_scale.shape[0], splitK) == (1, 1, 0)
    return Out.copy_(product(XQ, WQ) * x_scale * w_scale)


def gemm_a8w8_blockscale_ck(XQ: Any, WQ: Any, x_scale: Any, w_scale: Any, Out: Any, splitK: int = 0,
                            kernelName: str = "") -> Any:  # fmt: skip
    a = XQ.float() * x_scale.repeat_interleave(128, 1)
    b = WQ.float() * w_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return Out.copy_(a @ b.T)


@pytest.fixture
def aiter(tmp_path: Path) -> Any:
    """As an installation with three assembly kernels for plain weights, and one for shuffled ones."""
    (tmp_path / "bf16gemm").mkdir()
    names = ("right,0", "wrong,0", "refused,0", "shuffled,1")
    (tmp_path / "bf16gemm" / "a.csv").write_text("knl_name,bPreshuffle\n" + "\n".join(names) + "\n")
    mm = lambda inp, weights, bias=None, otype=None: product(inp, weights).to(otype)  # noqa: E731
    return SimpleNamespace(
        jit=SimpleNamespace(core=SimpleNamespace(get_asm_dir=lambda: str(tmp_path))),
        tuned_gemm=SimpleNamespace(tgemm=SimpleNamespace(mm=mm)),
        gemm_a16w16_asm=gemm_a16w16_asm,
        gemm_a8w8_ck=gemm_a8w8_ck,
        gemm_a8w8_blockscale_ck=gemm_a8w8_blockscale_ck,
    )


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (PLAIN, ["aiter tuned", "aiter asm right"]),
        (ROWS, ["aiter ck"]),
        (BLOCKS, ["aiter ck"]),
    ],
)
def test_calls_compute_the_problem(problem: GemmProblem, names: list[str], aiter: Any) -> None:
    """With operands as AITER has them, into C; what this aiter lacks (cktile) is left out."""
    operands = operands_of(problem)
    calls = calls_of(aiter, problem)
    assert {*names} <= {*calls} <= {*names, "aiter asm wrong", "aiter asm refused"}
    for name in names:
        operands["c"].zero_()
        calls[name](operands)
        assert torch.equal(operands["c"], expected_of(problem, operands).to(operands["c"].dtype))


def test_what_aiter_does_not_take_has_no_call(aiter: Any) -> None:
    """Other layouts, activations, scales of tensors, formats without a file of their own, an aiter of another day."""
    for problem in (
        replace(PLAIN, row_major_b=True),
        replace(PLAIN, activation="relu"),
        replace(ROWS, own=(("scales", "per_tensor"),)),
        replace(PLAIN, op="a16w8", dtype_b="int8"),
    ):
        assert calls_of(aiter, problem) == {}
    assert calls_of(SimpleNamespace(), PLAIN) == calls_of(SimpleNamespace(), ROWS) == {}
    assert [*calls_of(SimpleNamespace(gemm_a16w16_asm=1, jit=SimpleNamespace()), PLAIN)] == []


def test_right_calls_are_timed_and_others_told(aiter: Any) -> None:
    """A wrong one has no time, one that raises costs itself."""
    operands = operands_of(PLAIN)
    gemm = SimpleNamespace(operands_of=lambda copy: operands)
    timer = SimpleNamespace(prepare=lambda call, copies: lambda: [call(copy) for copy in copies] and 12.5)

    def check(subject: Subject) -> str:
        subject.launch(operands)
        return "" if torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16()) else "C[0, 0] is off"

    found = {each.name: each for each in timed(calls_of(aiter, PLAIN), gemm, timer, check)}  # type: ignore[arg-type]
    assert found["aiter asm right"] == Timed("aiter asm right", 12.5)
    assert found["aiter asm wrong"] == Timed("aiter asm wrong", None, "C[0, 0] is off")
    assert found["aiter asm refused"] == Timed("aiter asm refused", None, "RuntimeError: no such kernel")


def test_without_aiter_it_is_left_out_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and no failure; the same where its import fails."""

    def setting(options: object) -> Any:
        return SimpleNamespace(target=SimpleNamespace(gpu=SimpleNamespace(vendor="amd")), device_indices=(0,))

    monkeypatch.setattr(aiter_race, "make_setting", setting)
    monkeypatch.setattr(aiter_race, "environment_of", lambda *_: {})
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("left out: aiter's kernels: ModuleNotFoundError")
