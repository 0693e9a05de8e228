"""Tests of profiling/aiter_calls.py and command/first/aiter_proof.py: AITER's calls, on a stub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aiter_stub import LARGER, installed
from lt_problems import expected_of, operands_of

from genkern.command.first import aiter_proof
from genkern.command.first.aiter_proof import ASKED, Proved, main, problems, proved
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import op_folder, op_names
from genkern.profiling.aiter_calls import AiterCalls
from genkern.profiling.checking.verdict import Subject
from genkern.runtime.backends.lt_api import LtError

PLAIN = GemmProblem(1, 128, 256)


@pytest.fixture
def gemm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An open session of two copies, on a machine with AITER."""
    monkeypatch.setitem(sys.modules, "aiter", installed(tmp_path))
    copies = [operands_of(PLAIN), operands_of(PLAIN)]
    return SimpleNamespace(session=SimpleNamespace(problem=PLAIN), operands_of=copies.__getitem__, copies=2)


def test_a_call_takes_each_copy_in_turn(gemm: Any) -> None:
    """And by its name in results, in a process that did not look for it."""
    calls = AiterCalls(gemm)
    name = calls.names()[0]
    AiterCalls(gemm).call(name)(3)
    operands = gemm.operands_of(1)
    assert torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())


def test_what_would_be_built_is_not_raced(gemm: Any, tmp_path: Path) -> None:
    """A build takes minutes, a turn seconds; whoever asks for all has it built."""
    (tmp_path / "module_gemm_a16w16_asm.so").unlink()
    assert AiterCalls(gemm).names() == ["aiter tuned skinny"]
    assert len(AiterCalls(gemm, unbuilt=True).names()) > 1


def test_what_aiter_raises_is_a_refusal(gemm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, also of its import; so is a name that this AITER does not have."""
    calls = AiterCalls(gemm)
    monkeypatch.setattr(sys.modules["aiter"], "gemm_a16w16_asm", None)
    broken = AiterCalls(gemm)
    with pytest.raises(LtError, match="TypeError"):
        broken.call(calls.names()[0])(0)
    with pytest.raises(LtError, match="no call that this aiter has"):
        calls.call("aiter asm 9 9 gone")
    monkeypatch.setattr(sys.modules["aiter"].tuned_gemm, "get_GEMM_A16W16_config", None)
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(LtError, match="ModuleNotFoundError"):
        AiterCalls(gemm)


def test_each_call_is_proved(gemm: Any) -> None:
    """A wrong one is told, one that raises costs itself."""

    def check(subject: Subject) -> Any:
        operands = gemm.operands_of(0)
        subject.launch(operands)
        passed = torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())
        return SimpleNamespace(passed=passed, message="" if passed else "C[0, 0] is off")

    found = {each.name: each for each in proved(AiterCalls(gemm), SimpleNamespace(check=check))}  # type: ignore[arg-type]
    wrong = f"aiter asm 3 1 {LARGER}"
    assert found.pop(wrong) == Proved(wrong, "C[0, 0] is off")
    assert len(found) > 2
    assert {each.line for each in found.values()} == {f"{name}: right" for name in found}


def test_every_format_with_calls_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that has an aiter.py, on the targets that take it."""
    assert {*ASKED} == {op for op in op_names() if (op_folder(op) / "aiter.py").exists()}
    assert [problem.op for problem in problems("gfx942")] == [*ASKED]


def test_without_aiter_it_is_left_out_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and no failure; the same where its import fails."""

    def setting(options: object) -> Any:
        return SimpleNamespace(target=SimpleNamespace(gpu=SimpleNamespace(vendor="amd")), device_indices=(0,))

    monkeypatch.setattr(aiter_proof, "make_setting", setting)
    monkeypatch.setattr(aiter_proof, "environment_of", lambda *_: {})
    monkeypatch.setitem(sys.modules, "aiter", None)
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("left out: aiter: ModuleNotFoundError")
