"""Reports as Markdown, pictures and data, and the command that writes them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import run_here
from made_reports import HOSTILE, hostile_row, predicted, problems, results, winner
from recorded_runs import FIT

from genkern.results_report import FORMATS, collect, write, write_record


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Path, Path]:
    """New and old results: one size faster, one slower, one with another winner only, one without a library."""
    sizes = problems(4)
    new = [
        winner(sizes[0], 9.0),
        winner(sizes[1], 11.0),
        winner(sizes[2], 10.0, config=FIT[0]),
        winner(sizes[3], 10.0, None),
    ]
    old = [winner(problem, 10.0) for problem in sizes]
    return results(tmp_path / "new.yaml", new), results(tmp_path / "old.yaml", old)


def test_markdown_has_a_diff_with_p_values(compared: tuple[Path, Path], tmp_path: Path) -> None:
    """A line for each change: - for a slower size, + for a faster one, ! for another winner alone."""
    new, old = compared
    write(new, tmp_path / "r.md", old)
    text = (tmp_path / "r.md").read_text()
    block = text.partition("```diff\n")[2].partition("\n```")[0].splitlines()
    assert [line[0] for line in block] == ["-", "+", "!"]
    slower, faster, other = block
    assert problems()[1].size in slower
    assert "+10.0 %" in slower
    assert "-10.0 %" in faster
    assert "p < 0.001" in slower
    assert FIT[0].name in other
    assert all(f"`{problem.size}`" in text for problem in problems(4))


def test_markdown_marks_predictions(tmp_path: Path) -> None:
    write(results(tmp_path / "r.yaml", [predicted(problems()[0], 10.0)]), tmp_path / "r.md")
    (line,) = [line for line in (tmp_path / "r.md").read_text().splitlines() if line.startswith("| `")]
    assert "predicted" in line


def test_names_of_files_stay_text_in_markdown(tmp_path: Path) -> None:
    """No markup outside code, no column of their own, no invisible characters."""
    row = hostile_row()
    write([row], tmp_path / "r.md", [replace(row, kernel_name="```\n# other")], title=HOSTILE + "@everyone")
    text = (tmp_path / "r.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in table}) == 1
    outside = "".join(part for place, part in enumerate(text.replace("\\`", "").split("`")) if place % 2 == 0)
    assert "<img" not in outside.replace("\\<", "")
    assert "@everyone" not in text
    assert "\u202e" not in text
    assert "\n# other" not in text


def test_json_is_the_record(compared: tuple[Path, Path], tmp_path: Path) -> None:
    new, old = compared
    write(new, tmp_path / "r.json", old)
    record = json.loads((tmp_path / "r.json").read_text())
    assert [size["change"]["verdict"] for size in record["sizes"][:2]] == ["faster", "slower"]


def test_pictures_show_every_size(compared: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    new, old = compared
    record = collect(new, old)
    for kind in ("svg", "png"):
        write_record(record, str(tmp_path / f"r.{kind}"), kind)
    picture = ElementTree.fromstring((tmp_path / "r.svg").read_text())
    marks = [each for each in picture.iter() if {"mark-symbol", "role-mark"} <= {*each.get("class", "").split()}]
    points = [path for mark in marks for path in mark]
    # Three sizes have a speed, four are on the roofline, and four are compared with the old results.
    assert len(points) == 3 + 4 + 4
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_library_of_pictures_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    ran = run_here(capsys, "report", results(tmp_path / "r.yaml"), "-o", tmp_path / "r.png")
    assert "vl-convert" in ran.refusal
    assert "[report]" in ran.refusal
    assert not (tmp_path / "r.png").exists()


def test_results_without_times_are_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vl_convert")
    (tmp_path / "r.yaml").write_text(
        "- {'M': 16, 'N': 64, 'K': 64, 'BLOCK_SIZE_M': 16, 'BLOCK_SIZE_N': 32, 'BLOCK_SIZE_K': 32}\n"
    )
    assert "nothing to draw" in run_here(capsys, "report", tmp_path / "r.yaml", "-o", tmp_path / "r.svg").refusal


@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind not in ("png", "svg")])
def test_the_command_writes_each_format(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the suffix, and by --format for another suffix, byte by byte the same, but for the minute."""
    path = results(tmp_path / "r.yaml")
    ran = run_here(capsys, "report", path, "-o", tmp_path / f"r.{kind}", "--title", "t")
    assert ran.status == 0
    assert "no journal" in ran.out
    assert "6 sizes" in ran.out
    assert run_here(capsys, "report", path, "-o", tmp_path / "other", "--format", kind).status == 0
    assert (tmp_path / "other").stat().st_size == pytest.approx((tmp_path / f"r.{kind}").stat().st_size, rel=0.2)


def test_markdown_goes_to_a_pipe(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ran = run_here(capfd, "report", results(tmp_path / "r.yaml"), "--format", "md", "-o", "/dev/stdout")
    assert ran.status == 0
    assert ran.out.startswith("## ")
    assert "note: " not in ran.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml"),
        (["r.yaml", "nowhere.yaml"], "nowhere.yaml"),
        (["r.yaml", "-o", "r.pdf"], "html"),
        (["r.yaml", "-o", "nowhere/r.html/"], "r.html"),
        (["r.yaml", "--candidates", "nowhere.csv"], "nowhere.csv"),
        (["r.yaml", "--most_candidates", "-1"], "--most_candidates"),
        (["bad.yaml"], "bad.yaml"),
    ],
)
def test_what_cannot_be_reported_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    results(tmp_path / "r.yaml")
    (tmp_path / "bad.yaml").write_text("- {'M': 1, 'time_us': -1}\n")
    assert said in run_here(capsys, "report", *arguments).refusal
    assert not (tmp_path / "report.html").exists()
