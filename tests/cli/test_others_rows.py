"""Whole runs beside the rows of other devices, libraries and formats: theirs stay to the letter, and are not done."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from command import Ran, run_here
from small_gemms import needs_interpreter
from tiny_space import TINY_AMD
from winner_factory import CONFIG, winner, write_results

from genkern.cli.verify import read_own_results
from genkern.errors import ResultsError
from genkern.files.file_kind import read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

SIZE = GemmProblem(16, 128, 256)
HEADER = (
    "gfx,cu_num,M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle,libtype,solidx,splitK,us,kernelName,err_ratio,tflops,bw\n"
)
KEY = "16,128,256,False,torch.bfloat16,torch.bfloat16,False"
OTHERS = {
    "80 CUs": f"gfx942,80,{KEY},False,genkern,0,1,4.2,{CONFIG.name},0.0,1,1\n",
    "preshuffled": f"gfx942,304,{KEY},True,asm,0,1,4.2,k,0.0,1,1\n",
    "another arch": f"gfx950,256,{KEY},False,asm,0,1,4.2,k,0.0,1,1\n",
}


def tune(capsys: pytest.CaptureFixture[str], cache_dir: Path, results: Path, *options: object) -> Ran:
    predicted = [
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--space",
        TINY_AMD,
        "--cache_dir",
        cache_dir,
    ]
    return run_here(capsys, "-m", 16, "-n", 128, "-k", 256, "-o", results, *options, *predicted)


@pytest.mark.parametrize("other", OTHERS)
def test_rows_under_another_key_stay(
    other: str, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size is tuned for this device, behind the row that is not of it; --all replaces our row alone."""
    path = tmp_path / "r.csv"
    path.write_text(HEADER + OTHERS[other])
    ran = tune(capsys, cache_dir, path)
    assert (ran.status, ran.err) == (0, "")
    assert f"note: {path} keeps 1 row of other devices or libraries unchanged\n" in ran.out
    assert path.read_text().startswith(f"{HEADER}{OTHERS[other]}gfx942,304,{KEY},False,genkern_predicted,0,")
    after = path.read_bytes()
    assert "1 of 1 sizes are in" in tune(capsys, cache_dir, path).out
    assert path.read_bytes() == after
    assert tune(capsys, cache_dir, path, "--all").status == 0
    assert path.read_text().startswith(f"{HEADER}{OTHERS[other]}gfx942,304,{KEY},False,genkern_predicted,0,")
    assert len(path.read_text().splitlines()) == 3


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_a_measured_time_of_another_library_stays(
    options: tuple[str, ...], tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prediction of 11.2 us in the place of asm's 3.9 would be a loss, and beside it an index that AITER refuses."""
    path = tmp_path / "r.csv"
    path.write_text(f"{HEADER}gfx942,304,{KEY},False,asm,5,13,3.9,k,0.0,1,1\n")
    before = path.read_bytes()
    assert "asm's row for 16x128x256 (3.9 us)" in tune(capsys, cache_dir, path, *options).refusal
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == ["r.csv"]
    assert path.read_bytes() == before


@pytest.mark.parametrize("suffix", ["yaml", "csv"])
def test_all_does_not_predict_over_a_measurement(
    suffix: str, tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Our own measured row neither."""
    path = tmp_path / f"r.{suffix}"
    write_results(path, [replace(winner(16), problem=SIZE)])
    before = path.read_bytes()
    assert "holds a measured time of 16x128x256" in tune(capsys, cache_dir, path, "--all").refusal
    assert path.read_bytes() == before


def test_yaml_rows_of_another_device_stay(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured ones too; the file then has both devices, serves as a list of sizes, and each run finds its own."""
    path = tmp_path / "r.yaml"
    write_results(path, [replace(winner(16, arch="sm_90", device="NVIDIA H200"), problem=SIZE)], 132)
    before = path.read_text()
    assert tune(capsys, cache_dir, path, "--all").status == 0
    assert path.read_text().startswith(before)
    assert [entry["compute_units"] for entry in yaml.safe_load(path.read_text())] == [132, 304]
    assert "1 of 1 sizes are in" in tune(capsys, cache_dir, path).out
    sizes = read_sizes(str(path), GemmDefaults(), "gfx942")
    assert sizes.problems == (SIZE,)
    assert sizes.notes == ("1 duplicate size is tuned once: 16x128x256",)


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
def test_the_rows_of_this_device_are_verified(
    tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of those of other devices and formats only the number is said; without any of this device, others are run."""
    path = tmp_path / "r.yaml"
    config = Config("tiled", 16, 32, 32, 1, 1, 4, 2, waves_per_eu=0, matrix_instr_nonkdim=16, kpack=1)
    ours = replace(winner(16, config=config), problem=SIZE)
    write_results(path, [ours, replace(ours, arch="sm_90", device="NVIDIA H200"), replace(ours, device="MI300A")])
    verify = (
        "--compare_wo_tuning",
        "-i",
        path,
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--cache_dir",
        cache_dir,
    )
    ran = run_here(capsys, *verify)
    assert (ran.status, ran.err) == (0, "")
    assert f"note: left out of {path}: 2 rows of other devices\n" in ran.out
    assert "interpreter with fp16 operands" in ran.out
    assert ran.out.endswith(f"all 1 configs in {path} are correct\n")
    write_results(path, [replace(ours, device="AMD Instinct MI300A")])
    ran = run_here(capsys, *verify)
    assert "was made" in ran.out
    assert ran.out.endswith(f"all 1 configs in {path} are correct\n")


def test_a_shuffled_row_is_no_claim(tmp_path: Path) -> None:
    """Its config, if it is one of genkern's, is for weights that genkern's kernels do not read."""
    path = tmp_path / "r.csv"
    path.write_text(HEADER + OTHERS["80 CUs"].replace("False,genkern", "True,genkern"))
    (row,) = read_results(str(path))
    assert not row.is_genkerns
    with pytest.raises(ResultsError, match="holds no config"):
        read_own_results(str(path), GemmDefaults())


@needs_interpreter
@pytest.mark.usefixtures("fast_checks")
def test_a_check_says_its_types(tmp_path: Path, cache_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """bf16 is not what the interpreter multiplied; and its times are predicted, in every file."""
    path, profile = tmp_path / "r.yaml", tmp_path / "c.csv"
    ran = tune(capsys, cache_dir, path, "--compare", "-o2", profile, "-v")
    assert (ran.status, ran.err) == (0, "")
    assert "ok (fp16)" in ran.out
    assert "measured" not in ran.out
    assert "measured" not in profile.read_text()
    with open(profile) as file:
        assert "predicted" in {row["outcome"] for row in csv.DictReader(file)}
    assert yaml.safe_load(path.read_text())[0]["check"] == "interpreter with fp16 operands"
