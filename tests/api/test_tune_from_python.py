"""genkern.tune: runs in a child process, as a program meets them; GPUs are made up by fake_machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import run_here
from machines import machine
from processes import children
from tiny_space import FASTER, NAMES, tiny_command

import genkern
from genkern.errors import BugError, InputError, MachineError, ResultsError, RunError
from genkern.files.file_kind import read_results

SIZES = [(16, 128, 256), (33, 64, 4097)]
FASTEST = min(FASTER, key=FASTER.__getitem__)


@pytest.fixture
def space(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A space of eight configs, a warm cache, and an empty folder as the current one."""
    tiny_command(tmp_path, cache_dir, "")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("GENKERN_CACHE_DIR", str(cache_dir))
    return tmp_path / "tiny.yaml"


def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **what: object) -> None:
    """Let this process, and those that it starts, be on a machine with an H200."""
    for name, value in machine(tmp_path, gpus=1, **what).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def unchanged() -> Iterator[None]:
    """The test leaves signal handlers, threads and the switch interval as they were."""

    def state() -> object:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return handlers, sys.getswitchinterval(), threading.active_count(), threading.excepthook

    before = state()
    yield
    assert state() == before


def test_a_run_without_a_gpu_is_predicted_and_silent(
    space: Path, capfd: pytest.CaptureFixture[str], unchanged: None
) -> None:
    """The object, its text and its table say so; nothing is printed, and no file is left."""
    result = genkern.tune(SIZES, device="NVIDIA H100", space=space)
    assert [(w.problem.M, w.problem.N, w.problem.K) for w in result.winners] == SIZES
    assert result.predicted
    assert all(winner.predicted for winner in result)
    assert "predicted" in repr(result)
    assert "predicted" in result._repr_html_()
    assert result.to_pandas().predicted.tolist() == [True, True]
    assert (result.devices, result.failures, result.path) == (("NVIDIA H100",), {}, None)
    assert {winner.name for winner in result} <= set(NAMES)
    assert all(winner.speedup is None and winner.library_us is None for winner in result)
    assert capfd.readouterr() == ("", "")
    assert os.listdir(".") == []


def test_it_finds_what_the_command_finds(
    space: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = run_here(
        capsys, *("-m", 16, "-n", 128, "-k", 256, "--device", "h200", "--space", space, "-o", tmp_path / "c.yaml")
    )
    assert ran.status == 0, ran
    result = genkern.tune(M=16, N=128, K=256, device="h200", space=space)
    assert [winner.record for winner in result.winners] == read_results(str(tmp_path / "c.yaml"))


def test_a_run_on_a_gpu_is_measured_and_kept(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], unchanged: None
) -> None:
    """Its winners are checked and beside the library's times; the same call takes what is there."""
    on(tmp_path, monkeypatch, faster=FASTER, log=str(tmp_path / "log"))
    result = genkern.tune(SIZES, space=space, search="predicted", output="tuned.yaml", progress=True)
    assert not result.predicted
    assert "predicted" not in repr(result)
    assert {winner.name for winner in result} == {FASTEST}
    assert {winner.record.proved_by for winner in result} == {"gpu"}
    for winner in result:
        assert winner.time_us is not None
        assert winner.library_us is not None
        assert winner.speedup == winner.library_us / winner.time_us
    said = capfd.readouterr()
    assert said.out == ""
    assert "2 of 2 sizes" in said.err
    measured = (tmp_path / "log").read_text()
    again = genkern.tune(SIZES[:1], space=space, search="predicted", output="tuned.yaml", verbose=True)
    assert [winner.record for winner in again.winners] == [result.winners[0].record]
    assert (tmp_path / "log").read_text() == measured
    assert again.path == Path("tuned.yaml")
    assert any("--all" in note for note in again.notes)
    assert "note: " in capfd.readouterr().out


def test_an_interrupt_keeps_what_was_measured(
    space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unchanged: None
) -> None:
    """No process is left, and the same call goes on."""
    gate = tmp_path / "gate"
    on(tmp_path, monkeypatch, faster=FASTER, log=str(tmp_path / "log"), gate=[len(NAMES) + 4, str(gate)])
    output = tmp_path / "tuned.yaml"

    ended = threading.Event()

    def interrupt() -> None:
        # In the second size, once the first one's row is written.
        while not ended.wait(0.01):
            if "tiled" in _read(output) and "gate" in _read(tmp_path / "log"):
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    options = {"space": space, "search": "predicted", "output": output, "lanes": 1}
    try:
        with pytest.raises(genkern.TuningInterrupted, match="1 of 2 sizes") as caught:
            genkern.tune(SIZES, **options)  # type: ignore[arg-type]
    finally:
        ended.set()
    thread.join()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert [winner.problem.M for winner in caught.value.result.winners] == [16]
    assert children("genkern") == {}
    gate.touch()
    before = _read(tmp_path / "log").count("screen")
    assert len(genkern.tune(SIZES, **options).winners) == 2  # type: ignore[arg-type]
    assert _read(tmp_path / "log").count("screen") - before <= len(NAMES)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_threads_tune_at_the_same_time(space: Path, unchanged: None) -> None:
    found: dict[int, genkern.TuningResult] = {}

    def tune(m: int) -> None:
        found[m] = genkern.tune(M=m, N=128, K=256, device="h200", space=space)

    threads = [threading.Thread(target=tune, args=(m,)) for m in (16, 32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {m: result.winners[0].problem.M for m, result in found.items()} == {16: 16, 32: 32}


def test_a_size_without_a_winner_says_why(space: Path, tmp_path: Path) -> None:
    space.write_text(
        space.read_text().replace("SPLIT_K: [1]", "SPLIT_K: [64]").replace("rules: []", "rules: [split_k_empty]")
    )
    result = genkern.tune([(16, 128, 256)], device="h200", space=space)
    assert len(result) == 0
    ((problem, why),) = result.failures.items()
    assert problem.size == "16x128x256"
    assert "no config" in why
    assert why in repr(result)


def test_errors_are_exceptions_of_one_line(space: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the run starts, where they can be known; else with the message of the run."""
    with pytest.raises(InputError):
        genkern.tune(M=0, N=128, K=256, device="h200")
    for bad in ("", "/dev/stdout"):
        with pytest.raises(InputError, match="output"):
            genkern.tune(M=16, N=128, K=256, device="h200", output=bad)
    (tmp_path / "foreign.yaml").write_text("- {'M': 1}\n")
    with pytest.raises(ResultsError, match=r"foreign\.yaml") as caught:
        genkern.tune(M=16, N=128, K=256, device="h200", output=tmp_path / "foreign.yaml")
    assert isinstance(caught.value, ValueError)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", "/nowhere")
        with pytest.raises(MachineError, match="/nowhere"):
            genkern.tune(M=16, N=128, K=256, device="h200")
    for name, value in machine(tmp_path, missing=["jinja2"]).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RunError, match="jinja2") as failed:
        genkern.tune(M=16, N=128, K=256, device="h200", space=space)
    assert isinstance(failed.value, RuntimeError)
    assert "\n" not in str(failed.value)
    assert len(failed.value.result) == 0


def test_a_bug_is_no_result(space: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the log that has the traceback."""
    (tmp_path / "sitecustomize.py").write_text(
        "import genkern.tuning.predictor as p\np.first_ranked = lambda *_: [][0]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BugError, match="bug"):
        genkern.tune(M=16, N=128, K=256, device="h200", space=space)
