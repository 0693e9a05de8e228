"""`genkern merge`: lists of sizes become one, each size once, and nothing is lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from winner_factory import results_text, winner

from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes
from genkern.files.tune_gemm_yaml import size_line
from genkern.gemm.problem import GemmProblem
from genkern.runtime.process.size_recorder import SizeRecorder


def recorded(folder: Path, rank: int, *sizes: GemmProblem) -> None:
    recorder = SizeRecorder(folder, pytest.fail, {"RANK": str(rank)})
    for size in sizes:
        recorder(None, size, None)


def read(path: Path) -> list[GemmProblem]:
    return list(read_sizes(str(path), GemmDefaults(), "sm_90").problems)


A, B, C = GemmProblem(16, 256, 512), GemmProblem(1, 256, 512), GemmProblem(16, 128, 512, bias=True, activation="silu")
SCALED = GemmProblem(16, 256, 512, "a8w8", "fp8e4m3fnuz", "fp8e4m3fnuz")


def test_recorded_sizes_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder stands for what was recorded in it, by earlier releases too; each size stands once, a weight's M in
    order, in the types as written.
    """
    recorded(tmp_path, 0, A, SCALED)
    recorded(tmp_path, 1, C, A, B)
    of_one, _ = sorted(tmp_path.glob("recorded_*"))
    of_one.rename(tmp_path / "capture_host_1.yaml")
    (tmp_path / "online_x.yaml").write_text("- {'M': 1, 'N': 2, 'K': 3}\n")
    ran = run_here(capsys, "merge", tmp_path, "-o", tmp_path / "sizes.yaml")
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[-2].startswith("4 sizes, of 5 in 2 files, ")
    merged = read_sizes(str(tmp_path / "sizes.yaml"), GemmDefaults(), "gfx942")
    assert list(merged.problems) == [C, B, A, SCALED]
    assert merged.notes == ()


def test_other_lists_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """AITER's untuned CSV and tune_gemm's YAML, with a word on types that they do not say."""
    (tmp_path / "a8w8_untuned_gemm.csv").write_text("M,N,K,q_dtype_w\n16,256,512,torch.float8_e4m3fn\n")
    (tmp_path / "t.yaml").write_text("- {'M': 16, 'N': 256, 'K': 512, 'rowMajorA': 'T', 'rowMajorB': 'N'}\n")
    ran = run_here(capsys, "merge", tmp_path / "a8w8_untuned_gemm.csv", tmp_path / "t.yaml", "-o", tmp_path / "all")
    assert ran.status == 0
    assert "no key has the types" in ran.out
    assert [each.op for each in read(tmp_path / "all")] == ["a16w16", "a8w8"]


@pytest.mark.parametrize(
    ("problem", "name", "columns"),
    [
        (A, "any.csv", "M,N,K,bias,dtype,outdtype,scaleAB,bpreshuffle"),
        (
            GemmProblem(16, 256, 512, "a8w8", "int8", "int8", own=(("scales", "per_token"),)),
            "a8w8_untuned_gemm.csv",
            "M,N,K,q_dtype_w",
        ),
        (
            GemmProblem(16, 256, 512, "a8w8_blockscale", "fp8e4m3fn", "fp8e4m3fn"),
            "a8w8_blockscale_untuned_gemm_ds_v3.csv",
            "M,N,K",
        ),
        (
            GemmProblem(16, 256, 512, "batched_a16w16", own=(("batch_size", 4),)),
            "batched_a16w16_untuned_gemm.csv",
            "B,M,N,K",
        ),
    ],
)
def test_aiters_untuned_list(
    problem: GemmProblem, name: str, columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One format's sizes in its columns, read back as they were; under a name that says the format where these do
    not."""
    (tmp_path / "all.yaml").write_text(size_line(problem))
    assert run_here(capsys, "merge", tmp_path / "all.yaml", "-o", tmp_path / name).status == 0
    assert (tmp_path / name).read_text().splitlines()[0] == columns
    assert read(tmp_path / name) == [problem]
    if problem.op != "a16w16":
        assert problem.op in run_here(capsys, "merge", tmp_path / "all.yaml", "-o", tmp_path / "x.csv").refusal
    (tmp_path / "more.yaml").write_text(size_line(C))
    refused = run_here(capsys, "merge", tmp_path / "all.yaml", tmp_path / "more.yaml", "-o", tmp_path / f"2_{name}")
    assert "YAML" in refused.refusal
    assert not (tmp_path / f"2_{name}").exists()


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be read, and a last line that a full disk has cut, cost exit status 1 and themselves only."""
    recorded(tmp_path, 0, A, B)
    recorded(tmp_path, 1, C)
    cut, _ = sorted(tmp_path.glob("recorded_*"))
    cut.write_text(cut.read_text() + "- {'M': 16, 'N")
    (tmp_path / "bad.yaml").write_text("hello")
    ran = run_here(capsys, "merge", tmp_path, tmp_path / "bad.yaml", tmp_path / "none", "-o", tmp_path / "all.yaml")
    assert ran.status == 1
    assert "left out: " + str(tmp_path / "bad.yaml") in ran.out
    assert "none: no such file" in ran.out
    assert "last line, which is incomplete" in ran.out
    assert read(tmp_path / "all.yaml") == [C, B, A]


def test_standard_output_is_the_list_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What is said goes to standard error then."""
    recorded(tmp_path, 0, A)
    ran = run_here(capfd, "merge", tmp_path, "-o", "/dev/stdout")
    (tmp_path / "again.yaml").write_text(ran.out)
    assert read(tmp_path / "again.yaml") == [A]
    assert "1 sizes" in ran.err


def test_what_is_there_is_replaced_when_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A list, which may be one of those that are joined; results never, however they are named."""
    recorded(tmp_path / "new", 0, A)
    every, results, link = tmp_path / "all.yaml", tmp_path / "r.yaml", tmp_path / "link.yaml"
    every.write_text(size_line(B))
    results.write_text(results_text([winner(16)], "r.yaml", 132))
    link.symlink_to(results)
    before = results.read_bytes()
    merge = ["merge", every, tmp_path / "new", results, "-o"]
    for output in (every, results, link):
        assert "--overwrite replaces it" in run_here(capsys, *merge, output).refusal
    for output in (results, link):
        assert "holds results" in run_here(capsys, *merge, output, "--overwrite").refusal
    assert results.read_bytes() == before
    assert read(every) == [B]
    assert run_here(capsys, *merge, every, "--overwrite").status == 0
    assert {B, A} < set(read(every))


def test_nothing_to_join_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The line has the reason of the first file that could not be read."""
    assert "no.yaml: no such file" in run_here(capsys, "merge", tmp_path / "no.yaml", "-o", tmp_path / "o.yaml").refusal


@pytest.mark.parametrize("argv", [["."], ["x.yaml", "-o", "y.csv"], ["x.yaml", "-o", "y.yaml"], [".", "-o", "y.yaml"]])
def test_refusals(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without -o, into AITER's CSV, of files that are not there, or of a folder without recorded sizes: one line."""
    monkeypatch.chdir(tmp_path)
    assert run_here(capsys, "merge", *argv).refusal
    assert list(tmp_path.iterdir()) == []
