"""Rows that take the places of others: which, to the letter, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_winners import winner, write_results

from benchmarks.kernels import take_rows


def test_rows_of_the_same_problems_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In every file that has them; other rows, their order and comments stay, and nothing is added."""
    again, first, second = (tmp_path / name for name in ("again.yaml", "first.yaml", "second.yaml"))
    write_results(again, [winner(16, 7.0), winner(64, 8.0)])
    write_results(first, [winner(1, 10.0), winner(16, 10.0), winner(32, 10.0)])
    write_results(second, [winner(16, 11.0)])
    before, new = first.read_text().splitlines(), again.read_text().splitlines()
    take_rows.main([str(again), str(first), str(second)])
    assert first.read_text().splitlines() == [*before[:2], new[1], before[3]]
    assert second.read_text().splitlines()[1:] == [new[1]]
    said = capsys.readouterr().out
    assert f"{first}: 1 of 3 rows" in said
    assert f"1 rows of {again} are of problems that none of these files has" in said


def test_the_device_is_part_of_it(tmp_path: Path) -> None:
    """A row of another number of compute units is another row."""
    again, other = tmp_path / "again.yaml", tmp_path / "other.yaml"
    write_results(again, [winner(16, 7.0)], compute_units=304)
    write_results(other, [winner(16, 9.0)], compute_units=38)
    before = other.read_text()
    take_rows.main([str(again), str(other)])
    assert other.read_text() == before


def test_other_files_are_refused_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, with status 2."""
    again, first, table = tmp_path / "again.yaml", tmp_path / "first.yaml", tmp_path / "table.csv"
    write_results(again, [winner(16, 7.0)])
    write_results(first, [winner(16, 10.0)])
    write_results(table, [winner(16, 10.0)])
    before = first.read_text()
    with pytest.raises(SystemExit) as ended:
        take_rows.main([str(again), str(first), str(table)])
    assert ended.value.code == 2
    assert "table.csv: a row is not a line here" in capsys.readouterr().err
    assert first.read_text() == before
