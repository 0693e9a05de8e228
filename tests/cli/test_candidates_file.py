"""Tests of genkern/cli/candidates_file.py: the list of candidates grows, and never doubles or loses a size."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from winner_factory import report, winner

from genkern.cli.candidates_file import COLUMNS, CandidatesFile, candidate_table, condensed
from genkern.errors import OutputError, ResultsError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome

ONE, TWO = winner(1), winner(2)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_fastest_first_with_one_line_each() -> None:
    """Those without a time last; a message of several lines becomes one; whole numbers stay whole."""
    table = candidate_table(report(ONE))
    assert list(table.columns) == list(COLUMNS)
    assert list(table["us"])[:2] == [9.0, 10.0]
    assert list(table["outcome"]) == ["wrong", "measured", "compile_failed"]
    predicted = report(ONE)
    predicted.candidates = {name: replace(m, time_source="predicted") for name, m in predicted.candidates.items()}
    assert list(candidate_table(predicted)["outcome"]) == ["wrong", "predicted", "compile_failed"]
    text = table.to_csv(index=False, header=False)
    assert len(text.splitlines()) == 3
    assert "1,4096,4096,a16w16,bf16,bf16,bf16,T,N,False,none,,tiled_BM1,wrong,9.0," in text


def test_a_file_grows_and_keeps_other_sizes(hostile_path: Path) -> None:
    """Opened again, it drops just the sizes that are tuned again, other layouts or activations of theirs not."""
    path = hostile_path / "new" / "c.csv"
    first = CandidatesFile(str(path), [ONE.problem])
    for made in (ONE, TWO, winner(1, bias=True), winner(1, row_major_b=True), winner(1, activation="gelu")):
        first.append(report(made))
    before = rows(path)
    assert len(before) == 15
    assert before[0]["message"] == 'error "0.9", bad'
    again = CandidatesFile(str(path), [ONE.problem])
    assert rows(path) == before[3:]
    again.append(report(ONE))
    assert rows(path) == before[3:] + before[:3]
    assert [path.name for path in path.parent.iterdir()] == ["c.csv"]


def test_a_condensed_report_makes_the_same_rows(tmp_path: Path) -> None:
    """From a process that sends text instead of records; of these the wrong ones stay, to be told."""
    whole, text = tmp_path / "whole.csv", tmp_path / "text.csv"
    CandidatesFile(str(whole), []).append(report(ONE))
    small = condensed(report(ONE), with_candidates=True)
    CandidatesFile(str(text), []).append(small)
    assert text.read_bytes() == whole.read_bytes()
    assert [m.outcome for m in small.candidates.values()] == [Outcome.WRONG]
    assert condensed(report(ONE), with_candidates=False).table == ""


def test_a_row_that_was_cut_short_is_dropped(tmp_path: Path) -> None:
    """As a kill leaves it; its size is tuned again anyway."""
    path = tmp_path / "c.csv"
    file = CandidatesFile(str(path), [])
    file.append(report(ONE))
    whole = path.read_text()
    file.append(report(TWO))
    path.write_text(path.read_text()[: len(whole) + 30])
    CandidatesFile(str(path), [TWO.problem])
    assert path.read_text() == whole


@pytest.mark.parametrize("content", ["M,N,K\n1,2,3\n", "notes", b"\xff\xfe\0"])
def test_another_file_is_left_alone(content: str | bytes, tmp_path: Path) -> None:
    """What is no list of candidates is not written over."""
    path = tmp_path / "c.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = path.read_bytes()
    with pytest.raises(ResultsError, match="give another --profile_file"):
        CandidatesFile(str(path), [GemmProblem(1, 2, 3)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_empty_file_gets_its_header(tmp_path: Path) -> None:
    """As mktemp makes it."""
    path = tmp_path / "c.csv"
    path.touch()
    CandidatesFile(str(path), [])
    assert path.read_text() == ",".join(COLUMNS) + "\n"


def test_a_full_disk_is_one_error(tmp_path: Path) -> None:
    """When the file is made, and when it grows."""
    with pytest.raises(OutputError, match="No space left"):
        CandidatesFile("/dev/full", [])
    path = tmp_path / "c.csv"
    file = CandidatesFile(str(path), [])
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OutputError, match="No space left"):
        file.append(report(ONE))
