"""Tests of genkern/cli/verify.py: results files that are checked again, or timed, without a search."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command import DATA, ROOT, run, run_here
from long_tests import long_only
from machines import machine
from small_gemms import needs_interpreter
from winner_factory import CONFIG, checked, winner, write_results

from genkern.cli.target import RunTarget, versions
from genkern.cli.verify import TIME_COLUMNS, check_line, made_elsewhere, read_own_results
from genkern.errors import ResultsError
from genkern.files.gemm_entry import GemmDefaults
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT, gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Check
from genkern.result.result import Result

H200 = Config("tiled", 64, 64, 64, 8, 1, 4, 3)
FALLBACK = DATA / "tune_gemm" / "fallback_tuned_configs.yaml"
HERE = ["--arch", "gfx942", "--profiler", "predict", "--compile"]


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three winners on an H200."""
    path = tmp_path / "results.yaml"
    made = [winner(m, config=H200, arch="sm_90", device="NVIDIA H200", time_source="cudagraph") for m in (1, 16, 64)]
    write_results(str(path), made, 132)
    return path


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
def test_right_configs_without_a_gpu(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """tune_gemm's own results, odd K among them: a line each with the size that was run, status 0, nothing written."""
    text = "".join(
        f"- {{'M': 100, 'N': 64, 'K': {k}, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 32, 'BLOCK_SIZE_N': 32, "
        f"'BLOCK_SIZE_K': 64, 'GROUP_SIZE_M': 4, 'SPLIT_K': 1, 'num_warps': 4, 'num_stages': 2}}\n"
        for k in (4097, 256)
    )
    path = tmp_path / "r.yaml"
    path.write_text(text)
    ran = run_here(capsys, "--compare_wo_tuning", "--gemm_size_file", path, "--cache_dir", cache_dir, *HERE)
    assert (ran.status, ran.err) == (0, "")
    note, first, second, last = ran.out.splitlines()
    assert note.startswith(f"note: {path} does not name the types of 2 rows: bf16 is taken; tune_gemm's own default")
    assert first.startswith("100x64x4097 a16w16 bf16: ok: error ratio 0, worst row 0.00")
    assert "(interpreter with fp16 operands on 36x64x193): tiled_BM32_BN32_BK64_GM4_SK1_nW4_nS2" in first
    assert second.startswith("100x64x256 a16w16 bf16: ok: ")
    assert last == f"all 2 configs in {path} are correct"
    assert list(tmp_path.iterdir()) == [path]


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
@pytest.mark.skipif(not FALLBACK.exists(), reason="the files of others are not here")
def test_tune_gemms_own_results(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row of the file that it ships, with K = 4097."""
    row = next(line for line in FALLBACK.read_text().splitlines() if "'K': 4097" in line)
    path = tmp_path / "r.yaml"
    path.write_text(row + "\n")
    ran = run_here(capsys, "--compare_wo_tuning", "-i", path, "--cache_dir", cache_dir, *HERE)
    assert (ran.status, ran.err) == (0, "")
    assert "x4097 a16w16 bf16: ok: " in ran.out


def test_wrong_configs_are_named(
    results: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, the sizes in the last line, and what was found in each one's own; status 0 when none is wrong."""
    options = ["--compare_wo_tuning", "-i", results, "--cache_dir", cache_dir]
    fine = run_here(capsys, *options, env=machine(tmp_path, gpus=1))
    assert (fine.status, fine.err) == (0, "")
    assert fine.out.endswith(f"all 3 configs in {results} are correct\n")
    ran = run_here(capsys, *options, env=machine(tmp_path, gpus=1, wrong=[H200.name]))
    assert (ran.status, ran.err) == (1, "")
    assert ran.out.count("WRONG: C[0, 0] is 0, expected 1 (gpu): tiled_") == 3
    assert ran.out.endswith(f"3 of 3 configs in {results} are wrong: 1x4096x4096, 16x4096x4096, 64x4096x4096\n")


def test_benchmark_times_every_config(
    results: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With tune_gemm's columns first; no search, and the results are left alone."""
    before, times = results.read_bytes(), tmp_path / "new" / "times.csv"
    log = tmp_path / "log"
    env = machine(tmp_path, gpus=1, log=str(log), faster={H200.name: 50.0})
    ran = run_here(capsys, "--benchmark", "-i", results, "-o", times, "--cache_dir", cache_dir, env=env)
    assert (ran.status, ran.err) == (0, "")
    with open(times) as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == TIME_COLUMNS
    assert [row["M"] for row in rows] == ["1", "16", "64"]
    assert {row["trans"] for row in rows} == {"TN"}
    assert {row["time_source"] for row in rows} == {"cudagraph"}
    assert float(rows[0]["us"]) == pytest.approx(50, rel=1e-2)
    assert float(rows[0]["vendor_us"]) == pytest.approx(150, rel=1e-2)
    assert f"64x4096x4096 a16w16 bf16: {float(rows[2]['us']):.2f} us, " in ran.out
    assert log.read_text().split() == ["retime", "confirm"] * 3
    assert results.read_bytes() == before


def test_benchmark_without_a_gpu_says_predicted(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each line and each row; the file has tune_gemm's name when none is given."""
    monkeypatch.chdir(tmp_path)
    write_results("r.yaml", [winner(16, config=Config.parse("tiled_BM16_BN64_BK64_GM1_SK1_nW4_nS2"))])
    ran = run_here(capsys, "--benchmark", "-o", "r.yaml", "--cache_dir", cache_dir, *HERE)
    assert ran.status == 0
    assert "(predicted): tiled_" in ran.out
    (row,) = csv.DictReader(Path("output/benchmarking_results.csv").read_text().splitlines())
    assert row["time_source"] == "predicted"
    assert (row["op"], row["dtype_a"], row["dtype_c"], row["activation"]) == ("a16w16", "bf16", "bf16", "none")
    assert yaml.safe_load(Path("r.yaml").read_text())[0]["M"] == 16


def test_a_config_that_cannot_run_is_status_1(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs more LDS than there is: the others are timed, and the row says why this one is not."""
    small, big = (Config.parse(f"tiled_BM{m}_BN64_BK64_GM1_SK1_nW4_nS2") for m in (16, 1024))
    write_results(str(tmp_path / "r.yaml"), [winner(2048, config=big), winner(16, config=small)])
    times = tmp_path / "t.csv"
    ran = run_here(capsys, "--benchmark", "-i", tmp_path / "r.yaml", "-o", times, "--cache_dir", cache_dir, *HERE)
    assert ran.status == 1
    assert "2048x4096x4096 a16w16 bf16: did not run: " in ran.out
    first, second = csv.DictReader(times.read_text().splitlines())
    assert (first["us"], second["message"]) == ("", "")
    assert first["message"]
    assert float(second["us"]) > 0


@pytest.mark.parametrize(("mode", "said"), [("--compare_wo_tuning", "WRONG: "), ("--benchmark", "did not run: ")])
def test_what_cannot_compute_a_size_says_why(
    mode: str, said: str, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file may claim that gemv computes 16 rows: one line with the reason, status 1, and nothing is compiled."""
    path = tmp_path / "results.yaml"
    gemv = Config("gemv", 1, 4, 512, num_warps=4, num_stages=1)
    write_results(str(path), [winner(16, config=gemv)], 304)
    out = ["-o", tmp_path / "times.csv"] if mode == "--benchmark" else []
    ran = run_here(capsys, mode, "--gemm_size_file", path, *out, "--cache_dir", cache_dir, *HERE)
    assert ran.status == 1
    assert f"{said}gemv multiplies one row of A" in ran.out
    assert gemv.name in ran.out


@pytest.mark.parametrize("content", ["M,N,K\n1,2,3\n", "- {'M': 1}\n", b"\xff\xfe"])
def test_times_are_not_written_over_another_file(
    content: str | bytes, results: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only over earlier times."""
    path = tmp_path / "mine"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    env = machine(tmp_path, gpus=1)
    ran = run_here(capsys, "--benchmark", "-i", results, "-o", path, "--cache_dir", cache_dir, env=env)
    assert "holds no times of --benchmark" in ran.refusal
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_results_of_another_arch_are_refused(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the option that makes it right."""
    refusal = run_here(capsys, "--compare_wo_tuning", "-i", results, *HERE).refusal
    assert "holds results for sm_90, this run is for gfx942: give --arch sm_90" in refusal


@pytest.mark.parametrize("mode", ["--compare_wo_tuning", "--benchmark"])
def test_results_made_elsewhere_are_said_to_be(
    mode: str, results: Path, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another Triton or device: one line with both, and they are taken all the same; of the same, no word."""
    env = machine(tmp_path, gpus=1)
    command = [mode, "-i", results, "-o", tmp_path / "t.csv", "--cache_dir", cache_dir]
    text, here = results.read_text(), versions()["triton"]
    results.write_text(text.replace("'triton': '3.7.0'", f"'triton': '{here}'"))
    same = run_here(capsys, *command, env=env)
    assert (same.status, same.err) == (0, "")
    assert "was made" not in same.out
    results.write_text(text.replace("3.7.0", "3.0.1").replace("NVIDIA H200", "NVIDIA H100 PCIe"))
    ran = run_here(capsys, *command, env=env)
    assert (ran.status, ran.err) == (0, "")
    made = f"with Triton 3.0.1 (here {here}) on NVIDIA H100 PCIe (here NVIDIA H200)"
    assert ran.out.splitlines()[0] == f"note: {results} was made {made}: its configs may be slower here, or not run"
    assert ran.out.count("was made") == 1


def test_a_device_is_told_from_its_prediction() -> None:
    """Results that were predicted for a device are no other one's; a CSV says how many compute units there were."""
    gpu = gpu_for_arch("gfx942")
    here = RunTarget("gfx942", gpu, gpu.name, (0,))
    absent = RunTarget("gfx942", gpu, gpu.name + NOT_PRESENT, ())
    row = Result(winner(16).problem, CONFIG, arch="gfx942")

    def made(target: RunTarget, **said: object) -> str:
        return made_elsewhere([replace(row, **said)], target, "3.7.0")  # type: ignore[arg-type]

    for target in (here, absent):
        for said in (
            {},
            {"device": gpu.name},
            {"device": gpu.name + NOT_PRESENT},
            {"versions": (("triton", "3.7.0"),)},
        ):
            assert made(target, **said) == ""
        assert made(target, device="AMD Instinct MI300A").startswith("on AMD Instinct MI300A (here AMD Instinct MI300X")
        assert made(target, compute_units=304) == ""
        assert made(target, compute_units=80) == "on 80 compute units (here 304)"


def test_rows_of_other_libraries_are_not_checked(tmp_path: Path) -> None:
    """They are counted; a file of nothing else holds nothing to check."""
    path = tmp_path / "r.csv"
    write_results(str(path), [winner(16), winner(32)])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace(",genkern,", ",hipblaslt,")]) + "\n")
    found = read_own_results(str(path), GemmDefaults())
    assert found.foreign == 1
    assert [(each.problem.M, each.config, each.arch, each.compute_units) for each in found.results] == [
        (m, CONFIG, "gfx942", 304) for m in (16, 32)
    ]
    path.write_text("\n".join([lines[0], lines[1].replace(",genkern,", ",hipblaslt,")]) + "\n")
    with pytest.raises(ResultsError, match="nothing to do"):
        read_own_results(str(path), GemmDefaults())


def test_lines_say_what_was_run_and_found() -> None:
    """The types, since one size may be there in several; the reduced size only where it is another."""
    row, name = Result(winner(16).problem, CONFIG), "16x4096x4096 a16w16 bf16"
    assert check_line(row, checked()) == f"{name}: ok: error ratio 0, worst row 0.001 (gpu): {CONFIG.name}"
    crashed = Check(CONFIG.name, False, 1.0, float("inf"), "16x256x192", "interpreter", "the interpreter failed: why")
    assert check_line(row, crashed) == (
        f"{name}: WRONG: the interpreter failed: why (interpreter on 16x256x192): {CONFIG.name}"
    )
    unknown = Check(CONFIG.name, False, 1.0, float("inf"), "16x4096x4096", NOT_CHECKED, "on a GPU only")
    assert check_line(row, unknown) == f"{name}: not checked: on a GPU only: {CONFIG.name}"
    other = Result(winner(16, dtype_c="fp32", bias=True).problem, CONFIG)
    assert check_line(other, checked()).startswith("16x4096x4096 a16w16 bf16->fp32 bias: ok: ")


@long_only("starts the interpreter twice; test_generate.py runs such a module")
@needs_interpreter
def test_a_winners_module_is_used_as_documented(tmp_path: Path, cache_dir: Path) -> None:
    """--benchmark --keep makes a module of the winner, which docs/dispatch.md's program imports without genkern."""
    config = Config("tiled", 16, 16, 32, 1, 2, 4, 2)
    small = replace(winner(16, config=config), problem=GemmProblem(16, 64, 128))
    write_results(str(tmp_path / "tuned.yaml"), [small])
    text = (ROOT / "docs" / "dispatch.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m genkern (-i .*--keep .*)$", text, re.MULTILINE)
    program = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[-1]
    ran = run(*command.split(), *HERE, cwd=tmp_path)
    assert ran.status == 0, ran
    assert f"modules: {tmp_path}/winners/modules\n" in ran.out
    for name, value in (("6144", "64"), ("4096", "128"), ("bfloat16", "float16"), ('"cuda"', '"cpu"')):
        program = program.replace(name, value)
    program = program.replace(
        "y = torch.empty(16, 64, dtype=torch.float16", "y = torch.empty(16, 64, dtype=torch.bfloat16"
    )
    program += (
        "assert torch.allclose(y.float(), x.float() @ w.float().T, rtol=0.02, atol=0.1)\nprint(len(gemm.CONFIGS))\n"
    )
    path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**path, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1\n", done.stderr
