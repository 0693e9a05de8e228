"""Tests of profiling/aiter_finder.py: AITER's calls, on a stub."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from aiter_stub import installed, opened
from lt_problems import expected_of

from genkern.gemm.problem import GemmProblem
from genkern.profiling.aiter_finder import AiterFinder
from genkern.runtime.backends.lt_api import LtError

PLAIN = GemmProblem(1, 128, 256)


@pytest.fixture
def gemm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "aiter", installed(tmp_path))
    return opened(PLAIN)


def test_a_call_takes_each_copy_in_turn(gemm: Any) -> None:
    """And by its name in results, in a process that did not look for it."""
    calls = AiterFinder(gemm)
    name = calls.names()[0]
    AiterFinder(gemm).call(name)(3)
    operands = gemm.operands_of(1)
    assert torch.equal(operands["c"], expected_of(PLAIN, operands).bfloat16())


def test_what_would_be_built_is_not_raced(gemm: Any, tmp_path: Path) -> None:
    """A build takes minutes, a turn seconds; whoever asks for all has it built."""
    (tmp_path / "module_gemm_a16w16_asm.so").unlink()
    assert AiterFinder(gemm).names() == ["aiter tuned skinny"]
    assert len(AiterFinder(gemm, unbuilt=True).names()) > 1


def test_what_aiter_raises_is_a_refusal(gemm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is, also of its import; so is a name that this AITER does not have."""
    calls = AiterFinder(gemm)
    monkeypatch.setattr(sys.modules["aiter"], "gemm_a16w16_asm", None)
    broken = AiterFinder(gemm)
    with pytest.raises(LtError, match="TypeError"):
        broken.call(calls.names()[0])(0)
    with pytest.raises(LtError, match="not a call of this aiter"):
        calls.call("aiter asm 9 9 gone")
    monkeypatch.setattr(sys.modules["aiter"].tuned_gemm, "get_GEMM_A16W16_config", None)
    monkeypatch.setitem(sys.modules, "aiter", None)
    with pytest.raises(LtError, match="ModuleNotFoundError"):
        AiterFinder(gemm)
