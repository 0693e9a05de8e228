"""What a process does once is done before anybody waits for it, and costs no candidate."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import FakeGpu, name_of
from processes import WAIT_S
from server_requests import FakeAlgorithms, FakeChecking, Parent
from test_server import gpu
from test_supervised_profiler import HARNESS, candidate, events, session

from genkern.gemm.records import Candidate
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.timing.device_lock import DeviceLock
from genkern.timing.session import Session

__all__ = ["gpu", "session"]


@pytest.mark.parametrize("init_type", ["", "shy"])
def test_what_comes_later_is_rehearsed_once(session: Session, hostile_path: Path, init_type: str) -> None:
    """While there is nothing to measure, of the first size alone; a process that is lost by that costs no candidate."""
    session = replace(session, init_type=init_type, budget=replace(session.budget, libraries="triton,torch,cublaslt"))
    profiler = SupervisedProfiler("cudagraph", 0, *[str(hostile_path)] * 2, harness=HARNESS, rehearses=True)

    def rehearsed() -> list[str]:
        if not Path(session.work_dir, "log").exists():
            return []
        return [event for _, event in events(session) if event.startswith("rehearse")]

    def units(block_m: int) -> Iterator[Sequence[Candidate]]:
        yield [candidate("good", block_m)]
        deadline_s = time.monotonic() + WAIT_S
        while len(rehearsed()) < (1 if init_type else 2):
            assert time.monotonic() < deadline_s, "nothing is rehearsed"
            time.sleep(0.01)
        yield [candidate("good", block_m + 1)]

    try:
        for block_m in (10, 20):
            assert [m.duration_us for m in profiler.screen(session, units(block_m))] == [block_m, block_m + 1]
    finally:
        profiler.close()
    assert rehearsed() == ["rehearse check", "rehearse cublaslt"][: 1 if init_type else 2]


def test_a_device_of_several_is_left_to_who_measures(session: Session, hostile_path: Path) -> None:
    device_lock = DeviceLock(str(hostile_path / "gpu"))
    profiler = SupervisedProfiler(
        "cudagraph", 0, *[str(hostile_path)] * 2, harness=HARNESS, rehearses=True, device_lock=device_lock
    )
    try:
        assert len(list(profiler.screen(session, [[candidate("good")]]))) == 1
    finally:
        profiler.close()
    assert not [event for _, event in events(session) if event.startswith("rehearse")]


def test_a_rehearsal_runs_what_comes_later(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check, whose references stay, and each algorithm once; what is refused is left for later."""
    parent = Parent()
    assert parent.ask("rehearse", what="check") == {}
    assert (gpu.launched, FakeChecking.made) == (["us20"], 1)
    assert parent.ask("check", config=name_of("us10"), binaries=[])["passed"]
    assert FakeChecking.made == 1
    monkeypatch.setattr(FakeAlgorithms, "broken", (9, 14))
    gpu.launched.clear()
    assert parent.ask("rehearse", what="cublaslt") == {}
    assert gpu.launched == [name for name, us in FakeAlgorithms.times.items() if us not in (9, 14)]
    monkeypatch.setattr(FakeAlgorithms, "missing", "this PyTorch is not built with CUDA")
    assert parent.ask("rehearse", what="cublaslt") == {}


def test_the_command_imports_nothing_that_runs_on_a_device() -> None:
    """Every command would start later."""
    program = "import sys, genkern.cli.run; print('genkern.profiling.loaded_gemm' in sys.modules)"
    argv = [sys.executable, "-c", program]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "False\n"
