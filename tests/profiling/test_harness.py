"""Tests of profiling/harness.py on a simulated GPU; what a real parent makes of it is in
test_supervised_profiler.py.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import FakeGemm, FakeGpu, name_of
from server_requests import LT, FakeAlgorithms

from genkern.errors import BugError
from genkern.gemm.problem import GemmProblem
from genkern.profiling import fence, harness, server
from genkern.profiling.launch_job import FENCE, PLACES
from genkern.profiling.loaded_gemm import Call
from genkern.profiling.rocm.dispatch_match import parse_launch_log
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget, Session

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
        {"command": "screen", "configs": [name_of("us25")], "binaries": []},
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
    requests += [{"command": "screen", "configs": [name_of("fault")], "binaries": []}]  # type: ignore[dict-item]
    answers = io.StringIO()
    with pytest.raises(Ended):
        harness.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), answers, "cudagraph")
    assert len(answers.getvalue().splitlines()) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("RuntimeError: CUDA error: an illegal memory access")


def launched(folder: Path, schedule: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The launch log of a schedule, of the screening where it does not say a round."""
    visits = [{"round": None, **entry} for entry in schedule]
    job = {"session": json.loads(SESSION.to_json()), "launch_log": str(folder / "log"), "schedule": visits}
    (folder / "job.json").write_text(json.dumps(job))
    harness.main([str(folder / "job.json")])
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def test_a_schedule_is_launched_and_logged(gpu: FakeGpu, hostile_path: Path) -> None:
    """Each visit is logged before it is launched and after it is done, with the symbols of its binaries."""
    entry = hostile_path / "entry"
    entry.mkdir()
    (entry / "genkern.json").write_text(json.dumps({"symbol": "matmul_tiled_BM128"}))
    schedule = [
        {"config": name_of("us10"), "binaries": [str(entry)], "calls": 3},
        {"config": name_of("refused"), "binaries": [str(entry)], "calls": 3},
    ]
    assert launched(hostile_path, schedule) == [
        {"config": name_of("us10"), "start": True},
        {"config": name_of("us10"), "symbols": ["matmul_tiled_BM128"], "calls": 3},
        {"config": name_of("refused"), "start": True},
        {"config": name_of("refused"), "error": "RuntimeError: out of resource: shared memory"},
    ]
    assert gpu.launched == ["us10"] * 3


def test_the_clock_is_logged_between_rounds(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path) -> None:
    """Before each round of the finals and after the last, when all that was launched is done; null without a clock."""
    readings = iter([2100, 2050, 0])
    clock_rate = lambda: gpu.launched.append("clock") or next(readings)  # noqa: E731
    monkeypatch.setattr(gpu.torch.cuda, "clock_rate", clock_rate, raising=False)
    schedule = [{"config": name_of("us10"), "binaries": [], "calls": 1, "round": i // 2} for i in range(4)]
    lines = launched(hostile_path, schedule)
    assert [(i, line) for i, line in enumerate(lines) if "clock_mhz" in line] == [
        (0, {"clock_mhz": 2100.0, "round": 0}),
        (5, {"clock_mhz": 2050.0, "round": 1}),
        (10, {"clock_mhz": None, "round": 2}),
    ]
    assert gpu.launched == ["clock", "us10", "us10", "clock", "us10", "us10", "clock"]


def test_the_vendor_library_is_launched_between_fences(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path
) -> None:
    """Its first call, which loads it, is made once and before all fences; copies of B rotate on through its calls."""

    def fenced(call: Call) -> Call:
        def fenced_call(copy: int) -> None:
            gpu.run(FENCE, 1.0)
            copies.append(copy)
            call(copy)
            gpu.run(FENCE, 1.0)

        return fenced_call

    copies: list[int] = []
    monkeypatch.setattr(fence, "fenced", fenced)
    entry = {"config": VENDOR, "binaries": [], "calls": 2}
    assert launched(hostile_path, [entry, {"config": name_of("us10"), "binaries": [], "calls": 1}, entry]) == [
        {"config": VENDOR, "start": True},
        {"config": VENDOR, "symbols": [FENCE, FENCE], "calls": 2},
        {"config": name_of("us10"), "start": True},
        {"config": name_of("us10"), "symbols": [], "calls": 1},
        {"config": VENDOR, "start": True},
        {"config": VENDOR, "symbols": [FENCE, FENCE], "calls": 2},
    ]
    turn = [FENCE, "us20", FENCE] * 2
    assert gpu.launched == ["us20", *turn, "us10", *turn]
    assert copies == [0, 1, 3, 4]


def test_places_are_the_librarys_best_algorithms(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path
) -> None:
    """Found once, before their fences, and named in the log; a confirmation has one by its name."""
    monkeypatch.setattr(harness, "Algorithms", FakeAlgorithms)
    monkeypatch.setattr(FakeAlgorithms, "broken", (14,))
    monkeypatch.setattr(fence, "fenced", lambda call: call)
    places = PLACES["hipblaslt"]
    schedule = [{"config": place, "binaries": [], "calls": 2} for place in (*places, places[0], LT[12])]
    assert launched(hostile_path, schedule) == [
        {"config": places[0], "start": True},
        {"config": places[0], "symbols": [FENCE, FENCE], "calls": 2, "call": LT[9]},
        {"config": places[1], "start": True},
        {"config": places[1], "error": "LtError: the library has no further algorithm for this problem"},
        {"config": places[0], "start": True},
        {"config": places[0], "symbols": [FENCE, FENCE], "calls": 2, "call": LT[9]},
        {"config": LT[12], "start": True},
        {"config": LT[12], "symbols": [FENCE, FENCE], "calls": 2},
    ]
    assert gpu.launched[-7:] == [LT[9], LT[9], LT[9], LT[9], LT[12], LT[12], LT[12]]


def test_a_vendor_library_that_refuses_launches_no_fence(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path
) -> None:
    """Each turn has its error, and the configs go on: a fence without an end would make every place uncertain."""

    def refuse(_gemm: FakeGemm) -> Call:
        def call(_copy: int) -> None:
            raise RuntimeError("torch._int_mm: not\n supported")

        return call

    monkeypatch.setattr(FakeGemm, "vendor", refuse)
    entry = {"config": VENDOR, "binaries": [], "calls": 2}
    lines = launched(hostile_path, [entry, {"config": name_of("us10"), "binaries": [], "calls": 1}, entry])
    refused = {"config": VENDOR, "error": "RuntimeError: torch._int_mm: not supported"}
    assert [line for line in lines if "error" in line] == [refused, refused]
    assert gpu.launched == ["us10"]


@pytest.mark.parametrize("where", ["__init__", "bind", "called"])
def test_a_bug_is_the_last_line_of_the_log(
    where: str, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, hostile_path: Path
) -> None:
    """What genkern gets wrong is no config's error, wherever it shows: the parent reads it, with its traceback."""

    def wrong(*_: object) -> Any:
        raise KeyError("BLOCK_SIZE_M")

    if where == "called":
        monkeypatch.setattr(FakeGemm, "bind", lambda *_: wrong)
    else:
        monkeypatch.setattr(FakeGemm, where, wrong)
    with pytest.raises(KeyError):
        launched(hostile_path, [{"config": name_of("us10"), "binaries": [], "calls": 1}])
    log = (hostile_path / "log").read_text()
    assert '"error"' not in log
    with pytest.raises(BugError, match="KeyError: 'BLOCK_SIZE_M'") as caught:
        parse_launch_log(log)
    assert "test_harness.py" in caught.value.details


def test_a_context_is_made_beside_the_import(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is asked for it, also where that fails; whoever has no driver goes on."""
    asked: list[str] = []

    class Driver:
        status = 0

        def __getattr__(self, name: str) -> Any:
            return lambda *_: asked.append(name) or self.status

    monkeypatch.setattr("ctypes.CDLL", lambda name: Driver())
    harness._make_context()
    assert asked == ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    monkeypatch.setattr(Driver, "status", 100)
    harness._make_context()
    assert asked[3:] == ["cuInit"]

    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr("ctypes.CDLL", missing)
    harness._make_context()
