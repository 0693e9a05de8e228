"""Tests of benchmarks/checking/judges.py: one process judges many cases, and is replaced when one of them ends it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from small_gemms import needs_interpreter

from benchmarks.checking import judges
from benchmarks.checking.judges import Judge, Judged, judge
from benchmarks.checking.mutant_cases import Case
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

pytestmark = needs_interpreter

PROBLEM = GemmProblem(1, 32, 128, dtype_a="fp16", dtype_b="fp16", dtype_c="fp16")
SOUND = Case(PROBLEM, Config("gemv", 1, 16, 128, 1, 1, 2, 1))
WHO = "raise RuntimeError(f'process {__import__(\"os\").getpid()}')"


def mutant(text: str) -> Case:
    return Case(SOUND.problem, SOUND.config, "a fault", text)


def test_how_a_mutant_was_found_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies, one that hangs, a refusal, a text that is none; each costs itself only.

    A sound kernel has a process without mutants: what one wrote where it should not makes no kernel look wrong.
    """
    judge_ = Judge(tmp_path / "judge", "sm_90", False)
    try:
        # What the first one leaves behind would end the sound kernel.
        harm = "import torch; torch.allclose = torch.equal = torch.full = None; " + WHO
        first, second = (judge_.judged(mutant(text)) for text in (harm, WHO))
        assert (first.outcome, first.message) == ("refused", second.message)
        assert judge_.judged(mutant("no_such_name")).outcome == "invalid"
        assert judge_.judged(SOUND) == Judged(SOUND, "passed", "")
        died = judge_.judged(mutant("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
        assert died.outcome == "fault"
        assert "SIGSEGV" in died.message
        assert judge_.judged(SOUND).outcome == "passed"
        monkeypatch.setitem(judges._CASE_S, False, 1.0)
        assert judge_.judged(mutant("import time; time.sleep(60)")).outcome == "hang"
    finally:
        judge_.close()


def test_nothing_begins_after_the_limit() -> None:
    """What was begun before it is waited for, and the rest is left."""
    assert list(judge([SOUND], "sm_90", False, 1, time.monotonic())) == []


def test_a_wait_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no verdict comes for a while there is a sign of it; then the verdict comes."""

    def judged(self: Judge, case: Case) -> Judged:
        time.sleep(0.5)
        return Judged(case, "passed", "")

    monkeypatch.setattr(Judge, "judged", judged)
    *waits, last = judge([SOUND], "sm_90", False, 2, float("inf"), tick_s=0.1)
    assert set(waits) == {None}
    assert last == Judged(SOUND, "passed", "")
