"""Tests of `genkern why`: what is called by rows and bundles, what it beat, and what speaks against a config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import engine_bundle
import pytest
from command import ROOT, run_here
from winner_factory import checked, winner, write_results

from genkern.cli.questions.bound import bounds_of
from genkern.cli.questions.named_row import Place, Size, read_what
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import read_bundle

TILED = Config("tiled", 16, 32, 64, 1, 1, 4, 3)
H200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
SPACE = str(ROOT / "tests" / "tiny_nvidia.yaml")


def answers(capsys: pytest.CaptureFixture[str], *argv: object) -> list[dict[str, Any]]:
    ran = run_here(capsys, "why", *argv, "--json")
    assert ran.status == 0, ran
    return [json.loads(line) for line in ran.out.splitlines()]


def write(folder: Path, *rows: dict[str, Any], name: str = "r.yaml") -> Path:
    """A results file with a row of TILED for each set of changes."""
    made = [winner(**{"us": 10.0, "config": TILED, **H200, "check": checked(), **row}) for row in rows]
    write_results(folder / name, made, 132)
    return folder / name


def test_a_winner_says_what_it_beat_and_what_bounds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the row's measured times; the bound is the data sheet's, and larger than none of its parts."""
    path = write(tmp_path, {"m": 16, "vendor_us": 12.0, "vendor": "torch", "runner_up": "x_BM1", "runner_up_us": 11.0})
    (found,) = answers(capsys, "16x4096x4096", "--results", path)
    assert (found["called"], found["choice"], found["us"]) == (TILED.name, "config", 10.0)
    assert found["time_source"] == "cudagraph"
    assert found["row"].endswith("r.yaml:2")
    bound = found["bound"]
    assert bound["name"] == "bytes"
    assert bound["us"] == max(bound["bytes_us"], bound["matrix_us"], bound["launch_us"])
    ran = run_here(capsys, "why", "16x4096x4096", "--results", path)
    assert "1.200 times the config's time" in ran.out
    assert "1.100 times the config's time" in ran.out
    assert "PREDICTED" not in ran.out


@pytest.mark.parametrize(
    ("size", "name"), [((1, 4096, 4096), "bytes"), ((8192, 8192, 8192), "tensor cores"), ((1, 64, 64), "launch")]
)
def test_the_bound_is_the_slowest_of_bytes_products_and_launch(size: tuple[int, int, int], name: str) -> None:
    assert bounds_of(GemmProblem(*size), gpu_for_arch("sm_90")).name == name


def test_a_predicted_time_is_never_called_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a run without a GPU: the source is in JSON, and no line says that anything was measured."""
    path = tmp_path / "r.yaml"
    size = ("-m", 16, "-n", 64, "-k", 64, "--arch", "sm_90", "--space", SPACE)
    assert run_here(capsys, "tune", *size, "-o", path, "-o2", tmp_path / "c.csv").status == 0
    (found,) = answers(capsys, "16x64x64", "--results", path)
    assert found["time_source"] == "predicted"
    another = "tiled_BM16_BN32_BK64_GM1_SK1_nW4_nS3"
    ran = run_here(capsys, "why", "16x64x64", another, "--results", path, "--candidates", tmp_path / "c.csv")
    assert ran.out.count("PREDICTED") == 3
    assert " us measured" not in ran.out
    assert "next: measure it" in ran.out


@pytest.mark.parametrize(("choice", "called"), [("tie", "cublaslt"), ("vendor", "cublaslt")])
def test_the_library_is_called_unless_the_config_won(
    choice: str, called: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = f"cublaslt 130100 {'ab' * 64}"
    path = write(tmp_path, {"m": 16, "choice": choice, "vendor": call, "vendor_us": 10.0})
    (found,) = answers(capsys, f"{path}:2")
    assert (found["called"], found["config"]) == (call, TILED.name)
    assert f"called: {called}" in run_here(capsys, "why", f"{path}:2").out


def test_rules_and_legality_speak_against_a_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each rule of the space that drops it, with its reason; what the space does not list; what cannot run at all."""
    path = write(tmp_path, {"m": 16})

    def against(config: str) -> dict[str, Any]:
        (found,) = answers(capsys, "16x4096x4096", config, "--results", path, "--space", SPACE)
        return dict(found["against"])

    tall = against("tiled_BM64_BN32_BK64_GM4_SK1_nW4_nS3")
    assert [each["rule"] for each in tall["rules"]] == ["tile_over_problem", "group_m_redundant"]
    assert all(each["why"] for each in tall["rules"])
    assert "not_in_space" not in tall
    assert tall["predicted_us"] > 0
    kept = against(TILED.name)
    assert kept["rules"] == []
    assert "num_stages = 5" in against("tiled_BM16_BN32_BK64_GM1_SK1_nW4_nS5")["not_in_space"]


def test_a_config_that_is_none_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"m": 16})
    assert "CONFIG" in run_here(capsys, "why", "16x4096x4096", "tiled_BM3", "--results", path).refusal


def test_a_journal_beside_the_results_says_what_became_of_a_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time that the journal has of it, and how all candidates ended."""
    path = tmp_path / "r.yaml"
    size = ("-m", 16, "-n", 64, "-k", 64, "--arch", "sm_90", "--space", SPACE, "--compile", "--search", "exhaustive")
    cache = ("--cache_dir", tmp_path / "cache")
    assert run_here(capsys, "tune", *size, *cache, "-o", path).status == 0
    (found,) = answers(capsys, "16x64x64", "tiled_BM16_BN32_BK64_GM1_SK1_nW4_nS3", "--results", path)
    (told,) = found["against"]["told"]
    assert told["where"].endswith(".journal.previous")
    assert told["predicted"]
    assert "candidates: " in run_here(capsys, "why", "16x64x64", "--results", path).out


def test_of_two_rows_the_trusted_one_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A measured row before a predicted one, whatever the times; the other one is named."""
    fast = write(tmp_path, {"m": 16, "us": 1.0, "time_source": "predicted", "check": None}, name="fast.yaml")
    slow = write(tmp_path, {"m": 16, "us": 9.0}, name="slow.yaml")
    (found,) = answers(capsys, "16x4096x4096", "--results", fast, slow)
    assert found["us"] == 9.0
    assert "fast.yaml:2" in run_here(capsys, "why", "16x4096x4096", "--results", fast, slow).out


def test_filters_choose_among_formats_and_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"m": 16}, {"m": 16, "dtype_a": "fp16", "dtype_b": "fp16"}, {"m": 16, "device": "NVIDIA H100 80GB HBM3"}
    path = write(tmp_path, *rows)
    size = ("16x4096x4096", "--results", path)
    assert len(answers(capsys, *size)) == 3
    assert [each["device"] for each in answers(capsys, *size, "--device", "h100")] == ["NVIDIA H100 80GB HBM3"]
    assert len(answers(capsys, *size, "--dtype_a", "fp16")) == 1
    assert len(answers(capsys, *size, "--arch", "sm_90")) == 3


def test_an_m_that_was_not_tuned_names_its_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"m": 16}, {"m": 64}, {"m": 256})
    (found,) = answers(capsys, "65x4096x4096", "--results", path)
    assert (found["called"], found["tuned_m"]) == (None, [16, 64, 256])
    ran = run_here(capsys, "why", "65x4096x4096", "--results", path)
    assert "M = 64" in ran.out
    assert "M = 256" in ran.out
    assert "M = 16:" not in ran.out


def test_a_size_of_no_row_is_the_librarys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, with the command that tunes it."""
    ran = run_here(capsys, "why", "16x128x128", "--results", write(tmp_path, {"m": 16}))
    assert ran.status == 1
    assert "genkern tune -m 16 -n 128 -k 128" in ran.out


def test_a_bundles_rules_choose_for_every_m(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An M of its own row, and one between: the winner's name and the reason are those of the dispatcher."""
    path = tmp_path / "b.genkern"
    engine_bundle.write(str(path))
    own = read_bundle(str(path)).winners[0]
    n, k = own.problem.N, own.problem.K
    (found,) = answers(capsys, f"{own.problem.M}x{n}x{k}", "--bundle", path)
    assert (found["called"], found["exact"], found["why"]) == (own.config_name, True, "tuned")
    (between,) = answers(capsys, f"3x{n}x{k}", "--bundle", path)
    assert not between["exact"]
    assert between["why"]


@pytest.mark.parametrize(
    ("text", "meant"),
    [("1x2x3", Size(1, 2, 3)), ("1,2,3", Size(1, 2, 3)), ("a b.yaml:7", Place("a b.yaml", 7))],
)
def test_a_size_or_a_place_is_read(text: str, meant: Size | Place) -> None:
    assert read_what(text) == meant


@pytest.mark.parametrize("text", ["", "x", "1x2", "0x1x1", "1x2x99999999999", "file.yaml", "f:0", "\x1b[2J"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_what(text)


def test_a_place_without_a_row_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, {"m": 16}, {"m": 64})
    assert "line 3" in run_here(capsys, "why", f"{path}:9").refusal
    assert run_here(capsys, "why", f"{tmp_path}/none.yaml:2").status == 2


def test_without_a_file_genkern_config_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what genkern was released with; a wheel without either says what to give."""
    monkeypatch.setenv("GENKERN_CONFIG", str(write(tmp_path, {"m": 16})))
    (found,) = answers(capsys, "16x4096x4096")
    assert found["us"] == 10.0
    monkeypatch.setenv("GENKERN_CONFIG", "/nowhere")
    assert "GENKERN_CONFIG" in run_here(capsys, "why", "16x4096x4096").refusal
    monkeypatch.delenv("GENKERN_CONFIG")
    monkeypatch.setattr("genkern.cli.questions.named_row.SHIPPED_RESULTS", tmp_path / "none")
    assert "--results" in run_here(capsys, "why", "16x4096x4096").refusal
