"""`genkern record`: what a run of the whole command measured, in files that the next run is added to."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here
from machines import machine
from recorded_runs import OTHER, PROBLEM, journal
from tiny_space import FASTER, NAMES, tiny_command

from genkern.recorded.load import load, recorded_problems

SIZE = "- {'M': 64, 'N': 128, 'K': 256}\n"


def test_a_run_is_recorded_as_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every config of the size, with what its binary needs and what compiling it took; one line says where."""
    argv = [*tiny_command(tmp_path, tmp_path / "cache", SIZE), "--jobs", 1, "--exhaustive"]
    assert run_here(capsys, *argv, env=machine(tmp_path, gpus=1, faster=FASTER)).status == 0
    done = run_here(capsys, "record", tmp_path / "r.yaml", "-o", tmp_path / "tables", "--commit", "0123abc")
    assert done.status == 0, done
    (file,) = (tmp_path / "tables").iterdir()
    assert done.out.startswith(f"{file}: run ")
    assert " on NVIDIA H200, 1 size, " in done.out
    assert "in part" not in done.out
    frame = load(str(tmp_path / "tables"))
    ours = frame[frame["config"].str.startswith("tiled")]
    assert sorted(ours["config"]) == sorted(NAMES)
    assert (ours["whole"] & (ours["space"] == len(NAMES))).all()
    assert dict(zip(ours["config"], ours["screen_us"], strict=True)) == FASTER
    assert (ours["compile_s"] > 0).any()
    assert (ours["registers"] > 0).all()
    assert ours["unit"].nunique() == 4
    assert [run["commit"] for run in frame.attrs["runs"].values()] == ["0123abc"]


def test_several_runs_go_into_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder's journals, finished or not, each once however often it is given; a size in part is said."""
    journal(tmp_path / "a.yaml.journal")
    journal(tmp_path / "b.yaml.journal.previous", time_s=1.8e9, most=5)
    file = tmp_path / "all.parquet"
    done = run_here(capsys, "record", tmp_path, tmp_path / "a.yaml.journal", "-o", file)
    assert done.status == 0, done
    assert [line.count("1 of them in part") for line in done.out.splitlines()] == [0, 1, 0, 0]
    assert len(list(recorded_problems(str(file), "all"))) == 2


def test_nothing_to_record_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line: no run, a place that is a file, no place, a commit that is none; and nothing is written."""
    journal(tmp_path / "a.yaml.journal")
    results = tmp_path / "a.yaml"
    (tmp_path / "notes.txt").write_text("none")
    for argv, said in (
        ((tmp_path / "none.yaml", "-o", "x"), "no such file"),
        ((results, "-o", tmp_path / "notes.txt"), "is a file: name a folder"),
        ((results,), "--output"),
        ((results, "-o", "x", "--commit", "main"), "is not a commit"),
    ):
        assert said in run_here(capsys, "record", *argv).refusal
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.yaml.journal", "notes.txt"]


def test_files_of_kernel_tuner_are_written_of_whole_spaces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the sizes that are named; a size in part is counted; what makes no sense is refused in one line."""
    journal(tmp_path / "whole.yaml.journal", PROBLEM, OTHER)
    journal(tmp_path / "part.yaml.journal", time_s=1.8e9, most=5)
    size = f"{OTHER.M}x{OTHER.N}x{OTHER.K}"
    to = ("--to", "t4", "-o", tmp_path / "t4")
    done = run_here(capsys, "record", tmp_path / "whole.yaml", *to, "--size", size)
    assert (done.status, [path.name for path in tmp_path.glob("t4/*/*/")]) == (0, [OTHER.name])
    both = run_here(capsys, "record", tmp_path / "whole.yaml", tmp_path / "part.yaml", *to)
    assert both.status == 0
    assert "left out: 1 " in both.out.splitlines()[1]
    assert {path.name for path in tmp_path.glob("t4/*/*/")} == {OTHER.name, PROBLEM.name}
    (tmp_path / "notes.txt").write_text("none")
    for argv, said in (
        (("whole.yaml", "--to", "t4", "-o", tmp_path / "notes.txt"), "is a file"),
        (("part.yaml", *to), "nothing to write"),
        (("whole.yaml", *to, "--size", "64x64"), "is not a size"),
        (("whole.yaml", *to, "--commit", "0123abc"), "--commit"),
        (("whole.yaml", "-o", tmp_path / "t", "--size", size), "--to"),
        (("whole.yaml", "--to", "t5", "-o", "x"), "t5"),
    ):
        assert said in run_here(capsys, "record", tmp_path / str(argv[0]), *argv[1:]).refusal
