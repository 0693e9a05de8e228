"""Runs without a GPU: nothing is compiled unless asked, a check changes no choice, and rows are of the GPU that is
named."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

from genkern.files.file_kind import read_results
from genkern.result.result import Result

SIZE = ("-m", 64, "-n", 6144, "-k", 4096, "--profiler", "predict")
SIZES = "".join(f"- {{'M': {m}, 'N': 1024, 'K': 512}}\n" for m in (1, 3, 16, 64, 100, 256, 512, 1000, 1024))


def rows(path: Path) -> list[Result]:
    return list(read_results(str(path)))


@pytest.mark.parametrize("target", [("--arch", "sm_90"), ("--arch", "sm_80"), ("--arch", "gfx942")], ids=lambda t: t[1])
def test_nothing_is_compiled_without_being_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: tuple[str, str]
) -> None:
    ran = run_here(capsys, *SIZE, *target, "-o", tmp_path / "p.yaml", "--cache_dir", tmp_path / "cache", "-v")
    assert ran.status == 0, ran
    assert not list(tmp_path.glob("cache/binaries/**/*.json"))
    assert "binaries:" not in ran.out
    assert "expected loss 0 %" not in ran.out
    assert [row.time_source for row in rows(tmp_path / "p.yaml")] == ["predicted"]


def test_a_check_chooses_what_a_run_without_it_chooses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if it cannot run the winner, which is said."""
    found = []
    for name, options in (("a", ()), ("b", ("--compare", "-o2", "b.csv"))):
        options = tuple(str(tmp_path / each) if each.endswith(".csv") else each for each in options)
        ran = run_here(capsys, *SIZE, "--arch", "sm_90", "-o", tmp_path / f"{name}.yaml", *options)
        assert ran.status == 0, ran
        assert ("not checked here" in ran.out) == ("--compare" in options)
        found.append(rows(tmp_path / f"{name}.yaml"))
    assert found[0] == found[1]
    assert (found[0][0].check, bool(found[0][0].predicted_interval_us)) == (None, True)


def test_rows_are_of_the_device_that_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both GPUs of an architecture may stand in one file, and a bundle takes no row whose device was changed."""
    path = tmp_path / "p.yaml"
    for device in ("NVIDIA H100", "h200"):
        assert run_here(capsys, *SIZE, "--device", device, "-o", path).status == 0
    times = {row.device: row.duration_us or 0.0 for row in rows(path)}
    assert set(times) == {"NVIDIA H100 (not present)", "NVIDIA H200 (not present)"}
    assert times["NVIDIA H100 (not present)"] > 1.1 * times["NVIDIA H200 (not present)"]
    path.write_text(path.read_text().replace("NVIDIA H200", "NVIDIA H100").splitlines(keepends=True)[-1])
    refusal = run_here(capsys, "pack", path, "--predicted", "-o", tmp_path / "p.genkern").refusal
    assert "NVIDIA H100" in refusal
    assert "--device" in refusal


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device", "h100", "--arch", "gfx942"), "sm_90"),
        (("--device", "a100"), "NVIDIA A100 40GB"),
        (("--device", "h1000"), "NVIDIA H100"),
        (("--device", ""), "--device is empty"),
        (("--arch", "gfx942", "--space", "nvidia_sm90"), "--arch sm_90"),
    ],
    ids=["of another architecture", "several", "unknown", "empty", "a space of another architecture"],
)
def test_a_target_that_makes_no_sense_is_refused_with_what_helps(
    capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    assert said in run_here(capsys, *SIZE, *options).refusal


def test_several_processes_predict_what_one_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sizes.yaml").write_text(SIZES)
    arguments = "-i", tmp_path / "sizes.yaml", "--arch", "sm_90", "--space", "nvidia_quick", "--profiler", "predict"
    for jobs in (1, 3):
        assert run_here(capsys, *arguments, "--jobs", jobs, "-o", tmp_path / f"{jobs}.yaml").status == 0
    assert rows(tmp_path / "1.yaml") == rows(tmp_path / "3.yaml")
    assert [row.problem.M for row in rows(tmp_path / "3.yaml")] == [1, 3, 16, 64, 100, 256, 512, 1000, 1024]
