"""`genkern export` as a user runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import DATA, ROOT, run_here
from peer_files import AITER, AITER_NAME, VLLM, VLLM_NAME
from winner_factory import winner, write_results

from genkern.cli.candidates_file import COLUMNS
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import problem_cells

TILED = Config("tiled", 64, 64, 128, 8, 1, 4, 3)
OWN = Config("tiled_tma", 64, 64, 128, 8, 1, 4, 3)
FP8 = {"op": "a8w8_blockscale", "dtype_a": "fp8e4m3fn", "dtype_b": "fp8e4m3fn"}
H200 = {"arch": "sm_90", "device": "NVIDIA H200", "time_source": "cudagraph"}
NAME = "N=4096,K=4096,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json"
FAMILY = "gfx950/triton/gemm/gemm_a16w16"
SHIPPED = ROOT / "results" / "nvidia_h200" / "older" / "a8w8_blockscale_fp8.yaml"


def candidates(path: Path, problem: GemmProblem, times: dict[Config | str, float], outcome: str = "measured") -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for config, us in times.items():
            name = config if isinstance(config, str) else config.name
            writer.writerow({**problem_cells(problem), "config": name, "outcome": outcome, "us": us})
    return path


def test_imported_files_come_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM's file, imported and exported again, is the file to the letter; AITER's has the same configs."""
    (tmp_path / VLLM_NAME).write_text(VLLM)
    (tmp_path / AITER_NAME).write_text(AITER)
    argv = ["import", tmp_path / VLLM_NAME, tmp_path / AITER_NAME, "-o", tmp_path / "r.yaml"]
    assert run_here(capsys, *argv).status == 0
    argv = ["export", tmp_path / "r.yaml", "--to", "vllm", "-o", tmp_path / "v", "--device", "NVIDIA H200"]
    assert "not measured" in run_here(capsys, *argv).refusal
    assert run_here(capsys, *argv, "--predicted").status == 0
    assert [path.name for path in (tmp_path / "v").iterdir()] == [VLLM_NAME]
    assert (tmp_path / "v" / VLLM_NAME).read_text() == VLLM
    (tmp_path / VLLM_NAME).unlink()
    assert run_here(capsys, "import", tmp_path / AITER_NAME, "-o", tmp_path / "a.yaml").status == 0
    argv = ["export", tmp_path / "a.yaml", "--to", "aiter_triton", "-o", tmp_path / "a", "--predicted"]
    assert run_here(capsys, *argv).status == 0
    written = json.loads((tmp_path / "a" / FAMILY / "GEMM-A16W16-N=256-K=7168.json").read_text())
    assert written["M_LEQ_64"] == json.loads(AITER)["M_LEQ_64"]


def test_the_defaults_of_an_installed_aiter_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Into AITER's own folder go files of N and K; what serves every other size there is not replaced. The older layout
    is refused where AITER would pass over it."""
    configs = tmp_path / "configs"
    (configs / FAMILY).mkdir(parents=True)
    (configs / FAMILY / "DEFAULT.json").write_text('{"any": 1}')
    write_results(tmp_path / "r.yaml", [winner(16, 5.0, arch="gfx950", device="AMD Instinct MI350X")])
    argv = ["export", tmp_path / "r.yaml", "--to"]
    for overwrite in ([], ["--overwrite"]):
        ran = run_here(capsys, *argv, "aiter_triton", "-o", configs, *overwrite)
        assert ran.status == 0, ran
        assert "DEFAULT.json" in ran.out
        assert (configs / FAMILY / "DEFAULT.json").read_text() == '{"any": 1}'
        assert (configs / FAMILY / "GEMM-A16W16-N=4096-K=4096.json").exists()
        assert "DEFAULT.json" not in (configs / "losses.csv").read_text()
    refusal = run_here(capsys, *argv, "aiter_triton_flat", "-o", configs / "gemm").refusal
    assert "DEFAULT.json" in refusal
    assert not (configs / "gemm").exists()
    # A release with the older layout would ignore its own files for a folder of the newer one.
    (tmp_path / "old" / "gemm").mkdir(parents=True)
    (tmp_path / "old" / "gemm" / "gfx950-GEMM-A16W16.json").write_text("{}")
    assert "aiter_triton_flat" in run_here(capsys, *argv, "aiter_triton", "-o", tmp_path / "old").refusal
    assert not (tmp_path / "old" / "gfx950").exists()
    assert run_here(capsys, *argv, "aiter_triton_flat", "-o", tmp_path / "older").status == 0
    assert (tmp_path / "older" / "gfx950-GEMM-A16W16-N=4096-K=4096.json").exists()


def test_winners_of_genkerns_own_kernels_need_candidates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM cannot run tiled_tma: the size is left out, or gets the fastest config of --candidates that it can run."""
    won = winner(16, 5.0, OWN, **FP8, **H200)
    write_results(tmp_path / "r.yaml", [won])
    argv = ["export", tmp_path / "r.yaml", "--to", "vllm", "-o", tmp_path / "v", "--partial"]
    assert "no config that vllm can run was timed: tune them again" in run_here(capsys, *argv).refusal
    slower = Config("tiled", 32, 64, 128, 8, 1, 4, 3)
    times: dict[Config | str, float] = {OWN: 5.0, TILED: 6.0, slower: 7.0, "torch": 4.0}
    listed = candidates(tmp_path / "c.csv", won.problem, times)
    ran = run_here(capsys, *argv, "--candidates", listed)
    assert (ran.status, ran.err) == (0, "")
    assert json.loads((tmp_path / "v" / NAME).read_text())["16"]["BLOCK_SIZE_M"] == 64
    for outcome in ("wrong", "predicted"):
        candidates(listed, won.problem, times, outcome=outcome)
        assert "no config that vllm can run" in run_here(capsys, *argv, "--candidates", listed, "--overwrite").refusal
    assert run_here(capsys, *argv, "--candidates", listed, "--overwrite", "--predicted").status == 0


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Predictions, other formats and libraries are counted, and the rest is written."""
    rows = [
        winner(16, 5.0, TILED, **FP8, **H200),
        winner(32, 5.0, TILED, **FP8, **{**H200, "time_source": "predicted"}),
        winner(64, 5.0, TILED, **H200),
    ]
    write_results(tmp_path / "r.yaml", rows)
    argv = ["export", tmp_path / "r.yaml", "--to", "sglang", "-o", tmp_path / "s", "--partial"]
    ran = run_here(capsys, *argv)
    assert ran.status == 0
    assert "left out: 1 size: predicted" in ran.out
    assert "left out: 1 size: a16w16" in ran.out
    name = NAME.replace("128,128", "128, 128")
    assert list(json.loads((tmp_path / "s" / name).read_text())) == ["16"]
    assert "--overwrite" in run_here(capsys, *argv, "--predicted").refusal
    assert run_here(capsys, *argv, "--predicted", "--overwrite").status == 0
    assert list(json.loads((tmp_path / "s" / name).read_text())) == ["16", "32"]


def test_nothing_to_export_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However many reasons there are: each is counted before."""
    write_results(tmp_path / "r.yaml", [winner(64, 5.0, TILED, **H200), winner(16, 5.0, OWN, **FP8, **H200)])
    ran = run_here(capsys, "export", tmp_path / "r.yaml", "--to", "vllm", "-o", tmp_path / "v")
    assert ran.refusal.endswith("nothing to export to vllm: each of 2 sizes is left out, as above")
    assert ran.out.count("left out: 1 size:") == 2


def test_sizes_for_tunableop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Winners are no solutions of a library: what is written are the sizes, whoever won them."""
    write_results(tmp_path / "r.yaml", [winner(16, 5.0), winner(1, 5.0), winner(8, 5.0, bias=True)])
    ran = run_here(capsys, "export", tmp_path / "r.yaml", "--to", "tunableop", "-o", tmp_path / "untuned.csv")
    assert ran.status == 0
    assert "a vector" in ran.out
    assert (tmp_path / "untuned.csv").read_text().splitlines() == [
        "GemmTunableOp_BFloat16_TN,tn_4096_16_4096_ld_4096_4096_4096",
        "GemmAndBiasTunableOp_BFloat16_TN,tn_4096_8_4096_ld_4096_4096_4096",
    ]


def test_shipped_results_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of block-scaled fp8 were all won by kernels of genkern's own: vLLM gets those with times of others, as all
    have that were tuned since rows keep them. TunableOp has no such GEMM."""
    others = [row for row in read_results(str(SHIPPED)) if row.peer_us]
    ran = run_here(capsys, "export", SHIPPED, "--to", "vllm", "-o", tmp_path / "v")
    if not others:
        assert "nothing to export to vllm" in ran.refusal
    else:
        assert len(others) == len(read_results(str(SHIPPED)))
        assert f"{len(others)} sizes in" in ran.out
    assert "nothing to export" in run_here(capsys, "export", SHIPPED, "--to", "tunableop", "-o", tmp_path / "t").refusal


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ({16: TILED, 64: TILED}, "beyond M = 64"),
        ({128: TILED, 4096: TILED}, "below M = 128"),
        ({1: TILED, 64: OWN, 512: OWN, 4096: TILED}, "M = 64, 512"),
    ],
)
def test_a_file_that_would_serve_other_rows_badly_is_refused_by_name(
    rows: dict[int, Config], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM takes the nearest M: a file of decoding alone would serve prefill. Nothing is written unless asked for."""
    write_results(tmp_path / "r.yaml", [winner(m, 5.0, config, **FP8, **H200) for m, config in rows.items()])
    argv = ["export", tmp_path / "r.yaml", "--to", "vllm", "-o", tmp_path / "v"]
    ran = run_here(capsys, *argv)
    assert f"left out: {sum(config is TILED for config in rows.values())} sizes: {NAME}: " in ran.out
    assert said in ran.out
    assert "nothing to export" in ran.refusal
    assert not (tmp_path / "v").exists()
    assert run_here(capsys, *argv, "--partial").status == 0
    whole = [winner(m, 5.0, TILED, **FP8, **H200) for m in (1, 64, 4096)]
    # Rows of which such files cannot speak are no M that they lack.
    others = [winner(8, 5.0, TILED, **{**FP8, "op": "a8w8"}, **H200, own=(("scales", "per_token"),))]
    write_results(tmp_path / "r.yaml", [*whole, *others, winner(8, 5.0, TILED, **H200)])
    assert run_here(capsys, *argv, "--overwrite").status == 0
    assert list(json.loads((tmp_path / "v" / NAME).read_text())) == ["1", "64", "4096"]


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data (files of tune_gemm)")
def test_results_of_tune_gemm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own results, which have no times: as AITER's files, read back config by config; as sizes for TunableOp."""
    results = DATA / "tune_gemm" / "fallback_tuned_configs.yaml"
    argv = ["export", results, "--arch", "gfx942", "--to"]
    assert run_here(capsys, *argv, "aiter_triton", "-o", tmp_path / "a", "--predicted").status == 0
    assert run_here(capsys, "import", tmp_path / "a", "-o", tmp_path / "r.yaml").status == 0
    tuned = {(row.problem.N, row.problem.K, row.config) for row in read_results(str(results))}
    assert {(row.problem.N, row.problem.K, row.config) for row in read_results(str(tmp_path / "r.yaml"))} <= tuned
    assert run_here(capsys, *argv, "tunableop", "-o", tmp_path / "tunableop_untuned.csv").status == 0
    assert run_here(capsys, "import", tmp_path / "tunableop_untuned.csv", "-o", tmp_path / "s.yaml").status == 0
    assert len(read_sizes(str(tmp_path / "s.yaml"), GemmDefaults(), "gfx942").problems) == 59


@pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data (files of AITER)")
def test_rows_of_aiters_own_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's tuned table names kernels of its own, of which no config is known."""
    tuned = DATA / "aiter" / "bf16_tuned_gemm.csv"
    assert "another library" in run_here(capsys, "export", tuned, "--to", "aiter_triton", "-o", tmp_path / "a").refusal


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["r.yaml", "-o", "x"],
        ["r.yaml", "--to", "spreadsheet", "-o", "x"],
        ["missing.yaml", "--to", "vllm", "-o", "x"],
        ["r.yaml", "--to", "vllm", "-o", "r.yaml"],
        ["r.yaml", "--to", "aiter_triton", "-o", "x"],
        ["r.yaml", "--to", "vllm", "-o", "x", "--candidates", "r.yaml"],
        ["r.yaml", "--to", "vllm", "-o", "x", "--candidates", "bad.csv"],
        ["r.yaml", "--to", "vllm", "-o", "x", "--candidates", "odd.csv"],
        ["empty.yaml", "--to", "vllm", "-o", "x"],
        ["r.yaml", "--to", "tunableop", "-o", "."],
        ["r.yaml", "--to", "vllm", "-o", "empty.yaml"],
        ["r.yaml", "--to", "aiter_fmoe", "-o", "."],
        [".", "--to", "vllm", "-o", "x"],
        ["binary.yaml", "--to", "vllm", "-o", "x"],
        ["picture.csv", "--to", "vllm", "-o", "x"],
        ["/dev/null", "--to", "vllm", "-o", "x"],
    ],
)
def test_refusals(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    won = winner(16, 5.0, TILED, **FP8, **H200)
    write_results(tmp_path / "r.yaml", [won])
    (tmp_path / "empty.yaml").write_text("[]\n")
    for name in ("binary.yaml", "picture.csv"):
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    candidates(tmp_path / "bad.csv", won.problem, {TILED: float("nan")})
    odd = candidates(tmp_path / "odd.csv", won.problem, {TILED: 1.0}).read_text()
    (tmp_path / "odd.csv").write_text(odd.replace("a8w8_blockscale", "a0w0"))
    assert run_here(capsys, "export", *argv).refusal
    assert not (tmp_path / "x").exists()
