"""`genkern kernels` as a user meets it, and a run that starts from what it wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

from genkern.cli.kernel_cache.kernels import SIZES, kernels_parser, sizes_for, with_rows_between
from genkern.compile.kernels_file import KernelsFile
from genkern.gemm.problem import GemmProblem

LIST = "- {'M': 16, 'N': 128, 'K': 256, 'dtype_a': 'bf16'}\n- {'M': 32, 'N': 128, 'K': 256, 'dtype_a': 'bf16'}\n"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with a list of sizes and the kernels for it, of a cache that is gone."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "sizes.yaml").write_text(LIST)
    return folder


def command(folder: Path, *more: object) -> list[object]:
    files = ["-i", folder / "sizes.yaml", "-o", folder / "two.kernels", "--cache_dir", folder / "cache"]
    return ["kernels", "--arch", "gfx942", *files, "--count", 2, "--jobs", 1, *more]


def test_a_run_starts_from_the_file(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cold machine compiles nothing of what the file has; it says nothing of it where all fits."""
    ran = run_here(capsys, *command(written))
    path = written / "two.kernels"
    assert (ran.status, ran.err) == (0, "")
    assert ran.out.splitlines()[-2] == (
        f"2 kernels (0 refused) for 2 sizes, at least the first 2 of each: {path.stat().st_size} bytes in {path}"
    )
    assert len(KernelsFile(str(path))) == 2
    sizes = [
        "-i",
        written / "sizes.yaml",
        "--arch",
        "gfx942",
        "--profiler",
        "predict",
        "--compile",
        "--search",
        "predicted:1",
    ]
    ran = run_here(capsys, *sizes, "--kernels", path, "-o", tmp_path / "r.yaml", "--cache_dir", tmp_path / "cold")
    assert (ran.status, ran.err) == (0, "")
    assert "binaries: 0 compiled, 2 from the cache, 0 refused" in ran.out
    assert "note: " not in ran.out
    # What is there is replaced when that is asked for only, and only by its own kind.
    assert "exists; --overwrite replaces it" in run_here(capsys, *command(written)).refusal
    assert run_here(capsys, *command(written, "--overwrite")).status == 0
    path.write_text("a letter")
    assert "is not a file of kernels; --overwrite" in run_here(capsys, *command(written, "--overwrite")).refusal


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--op", "a8w8"), "no sizes of a8w8 for gfx942 in the lists"),
        (("--count", "0"), "'0' is not a whole number"),
        (("-i", "/nowhere.yaml"), "/nowhere.yaml: no such file"),
        (("--arch", "sm_1"), "--arch: invalid choice"),
    ],
)
def test_what_cannot_be_done_is_refused(
    options: tuple[str, ...], said: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before anything is compiled."""
    assert said in run_here(capsys, *command(written, *options, "-o", written / "none.kernels")).refusal
    assert not (written / "none.kernels").exists()


def test_a_file_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Named by the option or by the environment; an empty name too."""
    size = ["-m", 16, "-n", 128, "-k", 256, "--arch", "gfx942", "-o", tmp_path / "r.yaml"]
    assert "--kernels is empty" in run_here(capsys, *size, "--kernels", "").refusal
    assert "/nowhere: no such file" in run_here(capsys, *size, "--kernels", "/nowhere").refusal
    monkeypatch.setenv("GENKERN_KERNELS", str(tmp_path))
    assert f"{tmp_path} is a folder" in run_here(capsys, *size).refusal


def test_sizes_as_users_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    """All of input_sizes/ that the architecture computes, each once."""
    from rich.console import Console

    options = kernels_parser().parse_args(["--arch", "sm_90", "-o", "x", "--op", "a16w16", "a8w8"])
    found = sizes_for(options, Console())
    assert len(found) == len(set(found)) > 300
    assert {problem.op for problem in found} == {"a16w16", "a8w8"}
    assert SIZES.is_dir()


def test_rows_between_those_of_lists() -> None:
    """Each weight has some that no list has; what was there stays in front, and rows in groups stay as they are."""
    listed = [GemmProblem(m, n, 4096) for n in (128, 256) for m in (1, 16)]
    groups = GemmProblem(64, 128, 256, op="grouped_gemm", own=(("groups", 4),))
    found = with_rows_between([*listed, groups])
    assert found[:5] == [*listed, groups]
    assert [(problem.N, problem.K) for problem in found[5:]] == [(128, 4096)] * 3 + [(256, 4096)] * 3
    assert len({problem.M for problem in found[5:]} - {1, 16}) == 6
