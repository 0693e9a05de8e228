"""Tests of `genkern doctor`: every check ends, says what was found, and names a remedy for what is not ok."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import engine_bundle
import pytest
from command import run, run_here
from machines import machine

from genkern.cli.doctor import checks, doctor
from genkern.cli.doctor.finding import Finding, State
from genkern.cli.doctor.probe import MARK, engine_findings
from genkern.cli.doctor.probing import Probe
from genkern.gemm.gpus import DetectedDevice
from genkern.profiling.supervisor import Exit

H200 = DetectedDevice(0, "NVIDIA H200", "sm_90", driver="570.86.15")
# A line of nvidia-smi with the columns that doctor asks for, of an idle H200.
IDLE = (
    "0, NVIDIA H200, 1980, 1980, 1980, 120.5, 700.00, 700.00, 35, 0, 4, 143771, Enabled, Disabled, 0x0000000000000001"
)


def states(findings: list[Finding]) -> dict[str, State]:
    return {finding.name: finding.state for finding in findings}


def quick(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, dict[str, Any]]]:
    """The status of a quick run, and its findings by name."""
    ran = run_here(capsys, "doctor", "--quick", "--json", *argv)
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert lines[-1]["event"] == "summary"
    assert lines[-1]["status"] == ran.status
    return ran.status, {line["check"]: line for line in lines[:-1]}


def test_a_machine_without_a_gpu_has_no_problem(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """It predicts: a warning, and status 0. Text and JSON have the same findings."""
    monkeypatch.setattr(checks, "detect_devices", list)
    status, found = quick(capsys)
    assert (status, found["GPU"]["state"]) == (0, "warning")
    text = run_here(capsys, "doctor", "--quick").out
    for finding in found.values():
        assert finding["state"] in ("ok", "warning")
        assert bool(finding["remedy"]) == (finding["state"] != "ok")
        assert finding["said"] in text
    assert "next: genkern tune" in text


def test_a_machine_with_gpus_is_described(tmp_path: Path) -> None:
    """By a fake nvidia-smi, which knows only the first query; there is no C compiler on its PATH."""
    ran = run("doctor", "--quick", "--json", env=machine(tmp_path, gpus=1))
    found = {line["check"]: line for line in map(json.loads, ran.out.splitlines()) if line["event"] == "check"}
    assert "NVIDIA H200" in found["GPU 0"]["said"]
    assert "570.86.15" in found["GPU 0"]["said"]
    assert found["C compiler"]["state"] == "problem"
    assert ran.status == 1


def test_an_idle_gpu_is_ok() -> None:
    assert set(states(list(checks.state_of(IDLE))).values()) == {State.OK}


@pytest.mark.parametrize(
    ("before", "after", "name", "said"),
    [
        ("0x0000000000000001", "0x0000000000000044", "GPU 0 throttling", "hardware thermal slowdown"),
        ("700.00, 700.00", "500.00, 700.00", "GPU 0 power", "700 W"),
        (", 0, 4,", ", 97, 60000,", "GPU 0 load", "97 %"),
        ("Enabled, Disabled", "Disabled, Disabled", "GPU 0 driver", "persistence"),
        ("Enabled, Disabled", "Enabled, Enabled", "GPU 0 MIG", "divided"),
    ],
)
def test_what_falsifies_times_is_a_warning_with_a_remedy(before: str, after: str, name: str, said: str) -> None:
    assert before in IDLE
    (found,) = (each for each in checks.state_of(IDLE.replace(before, after)) if each.state is not State.OK)
    assert (found.name, found.state) == (name, State.WARNING)
    assert said in found.said
    assert found.remedy


@pytest.mark.parametrize("line", ["", "0, NVIDIA H200", "No devices were found", ",".join(["[N/A]"] * 15)])
def test_an_answer_that_is_none_is_no_fault(line: str) -> None:
    assert all(found.state is State.OK for found in checks.state_of(line))


def test_an_unknown_gpu_is_a_problem() -> None:
    (found,) = checks.gpu_findings([DetectedDevice(0, "NVIDIA X", "sm_77")])
    assert found.state is State.PROBLEM
    assert "GENKERN_GPU_FILES" in found.remedy


def test_a_hidden_gpu_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/nvidia-smi" if name == "nvidia-smi" else None)
    (found,) = checks.gpu_findings([])
    assert (found.state, "CUDA_VISIBLE_DEVICES" in found.remedy) == (State.PROBLEM, True)


def test_a_cache_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    (found,) = checks.cache_findings(str(file / "cache"))
    assert (found.state, "GENKERN_CACHE_DIR" in found.remedy) == (State.PROBLEM, True)


def test_a_cache_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2**20)
    found = checks.cache_findings(str(tmp_path))[0]
    assert "1 files" in found.said
    assert found.state is not State.PROBLEM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("text", ["/nowhere.genkern", "shippd"])
def test_a_bundle_that_is_not_there_is_a_problem(text: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_CONFIG", text)
    status, found = quick(capsys)
    (line,) = (each for name, each in found.items() if name.startswith("bundle"))
    assert (status, line["state"]) == (1, "problem")


def test_a_variable_with_a_wrong_value_is_a_problem(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENKERN_ONLY_PROVED", "maybe")
    assert quick(capsys)[0] == 1


def test_a_bundle_is_held_against_this_machines_gpus(tmp_path: Path) -> None:
    """Winners for a GPU that is here, for another one, and without a GPU."""
    path = tmp_path / "b.genkern"
    engine_bundle.write(str(path))
    environ = {"GENKERN_CONFIG": str(path)}
    bundle = checks.Sources(lambda line: None).check([str(path)])[0]
    own = DetectedDevice(0, bundle.winners[0].device, bundle.winners[0].arch)
    other = DetectedDevice(0, "NVIDIA Unheard Of", "sm_90")

    def fit(devices: list[DetectedDevice]) -> State:
        return next(each.state for each in checks.bundle_findings(environ, devices) if "winners for" in each.said)

    assert (fit([own]), fit([other]), fit([])) == (State.OK, State.PROBLEM, State.OK)


@pytest.mark.parametrize(
    ("text", "ended", "said"),
    [
        ("", Exit(None, True, 5.0, ""), "no answer after 5 s"),
        ("noise", Exit(-11, False, 1.0, "a\nlast words"), "SIGSEGV"),
        (f"{MARK}[1]", Exit(0, False, 1.0, ""), "exit code 0"),
        (f"{MARK}" + '{"failed": "ImportError: x"}', Exit(0, False, 1.0, ""), "ImportError: x"),
    ],
)
def test_a_probe_that_fails_hangs_or_crashes_is_a_finding(text: str, ended: Exit, said: str) -> None:
    probe = Probe("PyTorch", ("torch",), 5.0, "reinstall it")
    (found,) = probe.findings_of(text, ended)
    assert (found.name, found.state, found.remedy) == ("PyTorch", State.PROBLEM, "reinstall it")
    assert said in found.said


def test_a_probe_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within its time limit and a little more."""
    sleeping = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr("genkern.cli.doctor.probing.module_argv", lambda *words: sleeping)
    started_s = time.monotonic()
    (found,) = Probe("PyTorch", ("torch",), 0.5, "reboot").run()
    assert time.monotonic() - started_s < 60
    assert "no answer after 0.5 s" in found.said


def test_a_check_that_raises_is_a_finding(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other checks go on."""

    def broken() -> list[Finding]:
        raise ZeroDivisionError("why")

    monkeypatch.setattr(checks, "gpu_state_findings", broken)
    status, found = quick(capsys)
    assert status == 1
    assert "ZeroDivisionError: why" in found["GPU state"]["said"]
    assert "cache" in found


def test_an_engine_that_lacks_what_a_plugin_touches_is_told_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is not installed here, so nothing fits; each part says what is missing."""
    from genkern.engines import vllm

    found = engine_findings("vllm")
    assert len(found) == len(vllm.parts())
    assert {each.state for each in found} == {State.PROBLEM}
    assert all(part.serves in each.said for part, each in zip(vllm.parts(), found, strict=True))


def test_timers_are_tried_where_there_is_a_gpu() -> None:
    """The usual one must work; another may not."""
    fatal = {probe.name: probe.is_fatal for probe in doctor.probes([H200], None)}
    assert fatal["timer cudagraph"]
    assert not fatal["timer cupti"]
    assert not any(name.startswith("timer") for name in (probe.name for probe in doctor.probes([], None)))
    assert {probe.limit_s for probe in doctor.probes([H200], 7.0)} == {7.0}
