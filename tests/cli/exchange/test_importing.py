"""`genkern import` as a user runs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from peer_files import (
    AITER,
    AITER_NAME,
    SGLANG_NAME,
    TUNABLEOP,
    VLLM,
    VLLM_AMD,
    VLLM_AMD_NAME,
    VLLM_MOE_NAME,
    VLLM_NAME,
)
from winner_factory import results_text, winner

from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.results import ResultsFile, RunFacts
from genkern.files.sizes import read_sizes
from genkern.result.device import DeviceKey

H200 = RunFacts(DeviceKey("sm_90", "NVIDIA H200", 132), {"triton": "3.6.0"}, predicted=False)


def file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_configs_race_when_their_sizes_are_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is written is a list of sizes, and results whose configs a run with --all takes as former winners."""
    out = tmp_path / "out" / "imported.yaml"
    ran = run_here(capsys, "import", file(tmp_path, VLLM_NAME, VLLM), "-o", out)
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.startswith("3 sizes, each with a config, of 1 file,")
    sizes = read_sizes(str(out), GemmDefaults(), "sm_90")
    assert (len(sizes.problems), sizes.notes) == (3, ())
    results = ResultsFile(str(out), H200, GemmDefaults(), again=sizes.problems)
    results.require_room(sizes.problems)
    assert {problem.M: config.BLOCK_SIZE_N for problem, config in results.configs.items()} == {1: 32, 24: 32, 4096: 128}
    mi300x = RunFacts(DeviceKey("gfx942", "AMD Instinct MI300X", 304), {}, predicted=False)
    assert ResultsFile(str(out), mi300x, GemmDefaults()).configs == {}
    # They may be tuned by now.
    assert "exists; --overwrite" in run_here(capsys, "import", tmp_path / VLLM_NAME, "-o", out).refusal
    assert run_here(capsys, "import", tmp_path / VLLM_NAME, "-o", out, "--overwrite").status == 0
    too_old = run_here(capsys, "import", tmp_path / VLLM_NAME, "--arch", "sm_80", "-o", tmp_path / "sm_80.yaml")
    assert "nothing to import" in too_old.refusal


def test_a_folder_stands_for_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of all kinds with configs; what is not taken is counted, and of two configs for one size the first stays."""
    for name, text in ((VLLM_NAME, VLLM), (VLLM_MOE_NAME, VLLM), (AITER_NAME, AITER), (SGLANG_NAME, VLLM)):
        file(tmp_path, name, text)
    file(tmp_path, VLLM_NAME.replace("128,128", "128, 128"), VLLM.replace('"num_stages": 5', '"num_stages": 3'))
    file(tmp_path, "README.md", "not one")
    ran = run_here(capsys, "import", tmp_path, "-o", tmp_path / "all.yaml")
    assert ran.status == 0
    assert "fused MoE" in ran.out
    assert "left out: 1 configs of a size that already has another one" in ran.out
    rows = read_results(str(tmp_path / "all.yaml"))
    assert len(rows) == 9
    assert {row.arch for row in rows} == {"sm_90", "gfx950"}


def test_amd_configs_keep_their_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """matrix_instr_nonkdim and kpack are read back from what is written."""
    ran = run_here(capsys, "import", file(tmp_path, VLLM_AMD_NAME, VLLM_AMD), "-o", tmp_path / "r.yaml")
    assert ran.status == 0
    (row,) = read_results(str(tmp_path / "r.yaml"))
    assert row.config is not None
    assert row.config.name == "tiled_BM32_BN32_BK128_GM1_SK1_nW4_nS2_EU0_mfma16_kP1_schednone"


def test_sizes_alone_are_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TunableOp's solutions are none of genkern's: its GEMMs are a list to tune."""
    ran = run_here(capsys, "import", file(tmp_path, "tunableop_results0.csv", TUNABLEOP), "-o", tmp_path / "s.yaml")
    assert ran.status == 0
    assert "left out: 1 a batched GEMM" in ran.out
    assert len(read_sizes(str(tmp_path / "s.yaml"), GemmDefaults(), "gfx950").problems) == 5
    both = run_here(capsys, "import", tmp_path, file(tmp_path, VLLM_NAME, VLLM), "-o", tmp_path / "b.yaml")
    assert "files of their own" in both.refusal


def test_another_arch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--arch takes the configs of another device, in its own encoding of fp8."""
    name = VLLM_NAME.replace("NVIDIA_H200", "NVIDIA_H20")
    argv = ["import", file(tmp_path, name, VLLM), "-o", tmp_path / "r.yaml"]
    assert "give --arch" in run_here(capsys, *argv).refusal
    assert run_here(capsys, *argv, "--arch", "gfx942").status == 0
    assert {row.problem.dtype_a for row in read_results(str(tmp_path / "r.yaml"))} == {"fp8e4m3fnuz"}


def test_a_file_of_an_unknown_device_costs_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a folder, and below it, the others are taken and such files counted, damaged ones named with status 1."""
    (tmp_path / "below").mkdir()
    file(tmp_path, VLLM_NAME, VLLM)
    for device in ("NVIDIA_GB10", "NVIDIA_H20", "AMD_Instinct_MI325_OAM"):
        file(tmp_path / "below", VLLM_NAME.replace("NVIDIA_H200", device), VLLM)
    ran = run_here(capsys, "import", tmp_path, "-o", tmp_path / "r.yaml")
    assert (ran.status, ran.err) == (0, "")
    assert "left out: 3 files of GPUs that genkern does not know" in ran.out
    assert len(read_results(str(tmp_path / "r.yaml"))) == 3
    damaged = file(tmp_path / "below", VLLM_NAME.replace("1536", "2048"), VLLM[:90])
    ran = run_here(capsys, "import", tmp_path, "-o", tmp_path / "r.yaml", "--overwrite")
    assert (ran.status, len(read_results(str(tmp_path / "r.yaml")))) == (1, 3)
    assert damaged.name in ran.out


def test_folders_of_aiters_families(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's folder of configs as it is: the architecture is that of the path."""
    for arch in ("gfx942", "gfx950"):
        folder = tmp_path / arch / "triton" / "gemm" / "gemm_a16w16"
        folder.mkdir(parents=True)
        file(folder, "GEMM-A16W16-N=256-K=7168.json", AITER)
        file(folder, "DEFAULT.json", AITER)
    ran = run_here(capsys, "import", tmp_path, "-o", tmp_path / "r.yaml")
    assert "left out: 2 default files" in ran.out
    assert {row.arch for row in read_results(str(tmp_path / "r.yaml"))} == {"gfx950", "gfx942"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a8w8_untuned_gemm.csv", "M,N,K,q_dtype_w\n1,1280,8192,torch.float8_e4m3fnuz\n"),
        ("bf16_tuned_gemm.csv", "cu_num,M,N,K,libtype,solidx,splitK,us,kernelName\n304,1,2,3,asm,1,1,5.0,x\n"),
        ("sizes.yaml", "- {M: 1, N: 2, K: 3}\n"),
    ],
)
def test_lists_that_need_no_import(name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's GEMM tables and lists of sizes are read by -i and merge, which the refusal says."""
    refusal = run_here(capsys, "import", file(tmp_path, name, text), "-o", tmp_path / "x.yaml").refusal
    assert "genkern -i" in refusal
    assert "genkern merge" in refusal


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["missing/" + VLLM_NAME, "-o", "x.yaml"],
        ["README.md", "-o", "x.yaml"],
        [".", "-o", "x.yaml"],
        [VLLM_MOE_NAME, "-o", "x.yaml"],
        [VLLM_NAME, "-o", "x.yaml"],
        [VLLM_MOE_NAME, "-o", "x.csv"],
        [VLLM_MOE_NAME],
        ["tunableop_results0.csv", "-o", "x.yaml"],
    ],
)
def test_refusals(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names that say nothing, files that are none, nothing to take: one line, status 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    if argv[:1] != ["."]:
        file(tmp_path, VLLM_MOE_NAME, VLLM)
        file(tmp_path, VLLM_NAME, '{"1": 3}')
        file(tmp_path, "tunableop_results0.csv", "\x1b[31m,x\n")
    assert run_here(capsys, "import", *argv).refusal
    assert not (tmp_path / "x.yaml").exists()


def test_an_import_replaces_imported_rows_but_no_measured_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was imported is replaced where that is said; what was measured since is not."""
    output = tmp_path / "r.yaml"
    argv = ["import", file(tmp_path, VLLM_NAME, VLLM), "-o", output]
    assert run_here(capsys, *argv).status == 0
    assert run_here(capsys, *argv, "--overwrite").status == 0
    output.write_text(results_text([winner(16)], "r.yaml", 132))
    before = output.read_bytes()
    assert "holds times" in run_here(capsys, *argv, "--overwrite").refusal
    assert output.read_bytes() == before
