"""Tests of cli/new_machine/aiter_proof.py: AITER's calls, on a stub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from aiter_stub import LARGER, installed, opened
from lt_problems import expected_of

from genkern.cli.new_machine import aiter_proof
from genkern.cli.new_machine.aiter_proof import Proved, main, problems, proved
from genkern.gemm.problem import GemmProblem
from genkern.ops.aiter_calls import problems_with_calls
from genkern.profiling.aiter_finder import AiterFinder
from genkern.profiling.checking.verdict import Subject

PLAIN = GemmProblem(1, 128, 256)


@pytest.fixture
def gemm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "aiter", installed(tmp_path))
    return opened(PLAIN)


def test_each_call_is_proved(gemm: Any) -> None:
    """A wrong one is told, one that raises costs itself."""

    def check(subject: Subject) -> Any:
        operands = gemm.operands_of(0)
        subject.launch(operands)
        passed = torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())
        return SimpleNamespace(passed=passed, message="" if passed else "C[0, 0] is off")

    found = {each.name: each for each in proved(AiterFinder(gemm), SimpleNamespace(check=check))}  # type: ignore[arg-type]
    wrong = f"aiter asm 3 1 {LARGER}"
    assert found.pop(wrong) == Proved(wrong, "C[0, 0] is off")
    assert len(found) > 2
    assert {each.line for each in found.values()} == {f"{name}: right" for name in found}


def test_every_format_with_calls_is_proved(capsys: pytest.CaptureFixture[str]) -> None:
    """Each that has an aiter.py, on the targets that take it."""
    assert len(problems_with_calls()) >= 5
    assert [problem.op for problem in problems("gfx942")] == [*problems_with_calls()]


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
