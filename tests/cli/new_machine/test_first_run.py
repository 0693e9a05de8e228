"""Tests of cli/new_machine/first_run.py, plan.py and first_report.py: one report, whatever the steps do."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from command import environment, run_here
from machines import machine
from processes import assert_gone, until
from winner_factory import winner, write_results

from genkern.cli.new_machine import first_run, plan
from genkern.cli.new_machine.first_report import peer_lines, proof_lines, timer_lines, tuned_lines
from genkern.cli.new_machine.plan import (
    TUNED,
    FirstRunRequest,
    chosen_timer,
    first_steps,
    last_steps,
    sizes_text,
    timers_of,
)
from genkern.cli.new_machine.steps import Step, limit_of
from genkern.files.file_kind import read_results
from genkern.gemm.gpus import Gpu, gpu_for_arch

MI300X, H200 = gpu_for_arch("gfx942"), gpu_for_arch("sm_90")


def python(name: str, code: str) -> Step:
    return Step(name, f"Step {name}", ("-c", code), 20.0)


@pytest.fixture
def two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's facts, a step that crashes, and one that counts its runs."""
    crash = python("prove", "import sys, os; print('x ok'); sys.stderr.write('it | broke\\n'); os.abort()")
    count = python("tune", "open('count', 'a').write('x')")
    monkeypatch.setattr(first_run, "machine_step", lambda: python("machine", 'print(\'{"rocm": "7.0"}\')'))
    monkeypatch.setattr(first_run, "first_steps", lambda *of: [crash])
    monkeypatch.setattr(first_run, "last_steps", lambda *of: [count])


@pytest.mark.usefixtures("two_steps")
def test_a_crash_is_told_and_the_next_step_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report says how each step ended; what is done stays done, and what failed is tried again."""
    monkeypatch.chdir(tmp_path)
    env = machine(tmp_path, rocm=True)
    ran = run_here(capsys, "first-run", "-o", "out", env=env)
    text = (tmp_path / "out" / "report.md").read_text()
    assert ran.status == 1
    assert "# First run on AMD Instinct MI300X (gfx942)" in text
    assert "| prove | Step prove | failed: killed by SIGABRT; it / broke |" in text
    assert "| tune | Step tune | done |" in text
    assert "- rocm: 7.0" in text
    assert run_here(capsys, "first-run", "-o", "out", env=env).status == 1
    assert (tmp_path / "count").read_text() == "x"
    assert run_here(capsys, "first-run", "-o", "out", "--again", env=env).status == 1
    assert (tmp_path / "count").read_text() == "xx"
    with tarfile.open(tmp_path / "out" / "first_run.tar.gz") as tar:
        assert {"first_run/report.md", "first_run/sizes.yaml", "first_run/steps/prove.err.txt"} <= {*tar.getnames()}


@pytest.mark.usefixtures("two_steps")
def test_no_step_begins_when_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those are left out, and the report says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(first_run, "_LEAST_S", 1e9)
    assert run_here(capsys, "first-run", "-o", "out", env=machine(tmp_path, gpus=1)).status == 1
    assert (tmp_path / "out" / "report.md").read_text().count("left out: the time of --minutes is over") == 3


@pytest.mark.parametrize("gpu", [MI300X, H200], ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("minutes", [5, 9, 30])
def test_every_step_has_time_of_any_minutes(gpu: Gpu, minutes: int, tmp_path: Path) -> None:
    """Though each before it takes all that it may, and the sum of all is no more than the minutes."""
    wanted, left_s = FirstRunRequest(tmp_path), minutes * 60.0
    there = {"rocprofv3": "there", "rocprof": "there"}
    steps = [plan.machine_step(), *first_steps(wanted, gpu, there), *last_steps(wanted, gpu, "auto")]
    for number, step in enumerate(steps, start=1):
        may_s = limit_of(step, left_s, steps[number:])
        assert first_run._LEAST_S < may_s <= step.limit_s
        left_s -= may_s
    assert left_s >= 0


_KILLED = """
import os, sys
from genkern.cli.new_machine import first_run
from genkern.cli.new_machine.steps import Step, limit_of
def python(name, code):
    return Step(name, "Step " + name, ("-c", code), 60.0)
count = "open(name, 'a').write('x')"
first_run.machine_step = lambda: python("machine", "print('{}')")
first_run.first_steps = lambda *of: [python("prove", count.replace("name", "'proved'"))]
first_run.last_steps = lambda *of: [python("tune", "import os, time; " + count.replace("name", "'tuned'")
    + "; open('begun', 'w'); time.sleep(0 if os.path.exists('go') else 60)")]
from genkern.__main__ import main
sys.exit(main(["first-run", "-o", "out"]))
"""


def test_after_a_kill_the_same_command_goes_on(tmp_path: Path) -> None:
    """What was done is not done again, what was under way is; its process has gone with the one that was killed."""
    env = environment(machine(tmp_path, gpus=1))
    command = [sys.executable, "-c", _KILLED]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, text=True) as killed:
        until(lambda: (tmp_path / "begun").exists(), killed)
        killed.kill()
    assert_gone(tmp_path)
    (tmp_path / "go").touch()
    again = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert again.returncode == 0, again
    assert "prove: done before" in again.stdout
    assert [(tmp_path / name).read_text() for name in ("proved", "tuned")] == ["x", "xx"]
    assert "| tune | Step tune | done |" in (tmp_path / "out" / "report.md").read_text()


def test_without_a_gpu_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A prediction is no first run; nor is there anything to calibrate."""
    for word in ("first-run", "calibrate"):
        ran = run_here(capsys, word, "-o", tmp_path / "out", env=machine(tmp_path))
        assert "this machine has no GPU that genkern can measure on" in ran.refusal


def test_a_folder_without_a_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty variable of a shell; and a file is none."""
    (tmp_path / "file").touch()
    for word in ("first-run", "calibrate"):
        assert "-o is empty" in run_here(capsys, word, "-o", "", env=machine(tmp_path, gpus=1)).refusal
        said = run_here(capsys, word, "-o", tmp_path / "file", env=machine(tmp_path, gpus=1)).refusal
        assert "file" in said
    assert "is not a whole number" in run_here(capsys, "calibrate", "--kernels_a_size", "1").refusal


def test_timers_are_those_that_are_there() -> None:
    """AMD's profilers where their programs were found; what measures the rest is the best that gave all times."""
    there = {"rocprofv3": "/opt/rocm/bin/rocprofv3: 1.0", "rocprof": {"missing": "not found"}}
    assert timers_of(MI300X, there) == ["rocprofv3", "hipgraph", "hipevents"]
    assert timers_of(MI300X, {}) == ["hipgraph", "hipevents"]
    assert timers_of(H200, there) == ["cudagraph", "cudaevents", "cupti"]
    assert chosen_timer(MI300X, ["hipevents", "rocprofv3"]) == "rocprofv3"
    assert chosen_timer(MI300X, ["hipevents"]) == "hipevents"
    assert chosen_timer(H200, []) == "cudagraph"


def test_every_command_of_the_plan_is_one_that_genkern_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options are parsed by the very parsers, for both vendors, quick and whole; all share cache and GPU."""
    import importlib

    from genkern.cli.options import parse
    from genkern.subcommands import COMMANDS

    for quick in (True, False):
        wanted = FirstRunRequest(tmp_path, quick, ("--gpu_ids", "0", "--cache_dir", str(tmp_path)))
        for gpu in (MI300X, H200):
            steps = [*first_steps(wanted, gpu, {"rocprofv3": "there"}), *last_steps(wanted, gpu, "auto")]
            assert len({step.name for step in steps}) == len(steps)
            reading = {step.name: [Path(path).name for path in step.reads] for step in steps if step.reads}
            assert (reading["prove"], reading["tune"]) == (["proof.yaml"], ["sizes.yaml"])
            assert {path for name in reading if name.startswith("time_") for path in reading[name]} == {"timed.yaml"}
            names = [step.name for step in steps]
            assert ("aiter" in names) is (gpu is MI300X)
            assert names.index("tune") > names.index("aiter" if gpu is MI300X else "calibrate")
            assert {step.name: step.sizes for step in steps if step.sizes} == {
                "calibrate": 4 if quick else 7,
                "tune": 3 if quick else 12,
            }
            for step in steps:
                module, *argv = step.argv_within(90.0)[1:]
                assert str(tmp_path) in " ".join(argv)
                if module == "genkern" and argv[0] in COMMANDS:
                    word = argv.pop(0)
                    getattr(importlib.import_module(COMMANDS[word].module), f"parse_{word}")(argv)
                elif module == "genkern":
                    parse(argv)
            limits_s = sum(step.limit_s for step in steps)
            assert limits_s < 45 * 60
    assert len(TUNED) == len({*TUNED}) == 12
    assert sizes_text(FirstRunRequest(tmp_path)).count("\n") == 12
    assert 3 <= sizes_text(FirstRunRequest(tmp_path, quick=True)).count("\n") <= 4
    assert plan.machine_step().name == "machine"


def test_tables_say_what_is_there() -> None:
    """Times of several timers side by side, none where one has none; proofs are counted, others named."""
    head = "trans,M,N,K,us\n"
    tables = {"hipgraph": f"{head}TN,16,8,4,10.0\nTN,1,2,3,\n", "hipevents": f"{head}TN,16,8,4,11.0\n", "cupti": "x"}
    lines = timer_lines(tables)
    assert "| 16x8x4 | 10.00 | 11.00 (1.100) |" in lines
    assert timer_lines({"cupti": ""}) == ["No timer gave a time."]
    output = "16x8x4 a16w16 bf16: ok: error ratio 0: c\n16x8x4 a8w8: WRONG: C[0, 0] is 0: d\nall 2 configs\n"
    lines = proof_lines(output, "a8w8: left out: no space\nnot compiled: a16w4 c: refused\na16w16 1x1x1: tiled\n")
    assert lines[0] == "1 of 2 kernels are right to the bit."
    assert [line[:12] for line in lines[1:]] == ["- 16x8x4 a8w", "- a8w8: left", "- not compil"]


def test_others_kernels_are_told() -> None:
    """How many of AITER's calls are right; those that are not, and what could not be called, by name."""
    said = "a16w16 aiter ck: right\na16w16 aiter asm b: C[0] is off\nleft out: a8w8: this aiter has no call for it\n"
    assert peer_lines(said) == [
        "1 of 2 calls are right; tuning times these.",
        "- a16w16 aiter asm b: C[0] is off",
        "- left out: a8w8: this aiter has no call for it",
    ]
    assert peer_lines("left out: aiter: not installed\n") == ["- left out: aiter: not installed"]


def test_what_was_tuned_stands_beside_the_library(tmp_path: Path) -> None:
    """Each size with its time and what the library and PyTorch take of it, and the mean over all that have both."""
    rows = [winner(16, vendor_us=20.0, torch_us=30.0), winner(64)]
    write_results(tmp_path / "r.yaml", rows)
    lines = tuned_lines(read_results(str(tmp_path / "r.yaml")))
    us = rows[0].duration_us
    assert f"| {us:.2f} | {20 / us:.3f} | {30 / us:.3f} |" in lines[2]
    assert lines[-1].endswith(f"{20 / us:.3f} in geometric mean, 1 sizes.")


def test_the_machine_step_answers_on_any_machine(tmp_path: Path) -> None:
    """Each question has its answer, or why there is none; none of them ends the others."""
    from genkern.cli.new_machine.machine import facts

    found = json.loads(json.dumps(facts(), default=str))
    assert {"gpus", "versions", "rocprofv3", "pytorch", "aiter"} <= found.keys()
