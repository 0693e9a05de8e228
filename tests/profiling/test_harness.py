"""Tests of profiling/harness.py on a simulated GPU; what a real parent makes of it is in test_served.py."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest
from fake_gpu import FakeGemm, FakeGpu, name_of

from genkern.problem import GemmProblem
from genkern.profiling import harness, server
from genkern.profiling.session import Budget, Session

SESSION = Session("module.py", GemmProblem(64, 64, 64), "sm_90", 0, ".", Budget(finals_s=1e9))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", gpu.torch)
    monkeypatch.setattr(server, "LoadedGemm", FakeGemm)
    monkeypatch.setattr(harness, "LoadedGemm", FakeGemm)
    monkeypatch.setattr(server, "open_clock", lambda *_: None)
    monkeypatch.setattr(FakeGemm, "the_gpu", gpu, raising=False)
    return gpu


def test_serving_is_one_answer_a_request(gpu: FakeGpu) -> None:
    """JSON lines, what is told before an answer among them, until the requests end."""
    requests = [
        {"command": "open", "session": SESSION.to_json()},
        {"command": "screen", "config": name_of("us25"), "binaries": []},
        {"command": "retime", "candidates": [], "vendor": True, "min_rounds": 1, "max_rounds": 1, "seed": 0},
    ]
    answers = io.StringIO()
    harness.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers, "cudagraph")
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert lines[0]["device"] == "Fake GPU"
    assert lines[1]["config"] == name_of("us25")
    assert lines[2] == {"running": "vendor"}
    assert len(lines[-1]["samples_us"]["vendor"]) == 1
    assert all(set(line) == {"running"} for line in lines[2:-1])


def test_a_fault_is_said_last_on_standard_error(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process ends at once with status 1, and the last line that it wrote is the error, on one line."""

    class Ended(BaseException):
        pass

    def leave(status: int) -> None:
        assert status == 1
        raise Ended

    monkeypatch.setattr(os, "_exit", leave)
    requests = [{"command": "open", "session": SESSION.to_json()}]
    requests += [{"command": "screen", "config": name_of("fault"), "binaries": []}]  # type: ignore[dict-item]
    answers = io.StringIO()
    with pytest.raises(Ended):
        harness.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers, "cudagraph")
    assert len(answers.getvalue().splitlines()) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("RuntimeError: CUDA error: an illegal memory access")


def test_a_schedule_is_launched_and_logged(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path) -> None:
    """Each visit is logged before it is launched and after it is done, with the symbols of its binaries."""
    entry = hostile_path / "entry"
    entry.mkdir()
    (entry / "genkern.json").write_text(json.dumps({"symbol": "matmul_tiled_BM128"}))
    log = hostile_path / "log"
    job = {
        "session": json.loads(SESSION.to_json()),
        "launch_log": str(log),
        "schedule": [
            {"config": name_of("us10"), "binaries": [str(entry)], "calls": 3},
            {"config": name_of("refused"), "binaries": [str(entry)], "calls": 3},
        ],
    }
    (hostile_path / "job.json").write_text(json.dumps(job))
    harness.main([str(hostile_path / "job.json")])
    assert gpu.launched == ["us10"] * 3
    assert [json.loads(line) for line in log.read_text().splitlines()] == [
        {"config": name_of("us10"), "start": True},
        {"config": name_of("us10"), "symbols": ["matmul_tiled_BM128"], "calls": 3},
        {"config": name_of("refused"), "start": True},
        {"config": name_of("refused"), "error": "RuntimeError: out of resource: shared memory"},
    ]
