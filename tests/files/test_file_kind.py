"""Tests of genkern/files/file_kind.py: what a file is, by its name alone, and that each kind reads what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from winner_factory import winner, write_results

from genkern.errors import ResultsError
from genkern.files import aiter_csv, tune_gemm_yaml
from genkern.files.file_kind import kind_of, read_results
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes


@pytest.mark.parametrize("name", ["a.csv", "A.CSV", "x.yaml.csv", ".csv"])
def test_csv_is_aiters(name: str) -> None:
    assert kind_of(name) is aiter_csv


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "csv", "a.csv.bak", "a.json", ""])
def test_all_else_is_tune_gemms(name: str) -> None:
    assert kind_of(name) is tune_gemm_yaml


@pytest.mark.parametrize("name", ["r.yaml", "r.csv"])
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    """As results, with the device, and as a list of sizes without a note."""
    path = tmp_path / name
    write_results(path, [winner(16), winner(64, 123.4)], 80)
    rows = read_results(str(path))
    assert [(row.problem, row.config, row.duration_us) for row in rows] == [
        (made.problem, made.config, made.duration_us) for made in (winner(16), winner(64, 123.4))
    ]
    assert {(row.arch, row.compute_units, row.predicted, row.is_genkerns) for row in rows} == {
        ("gfx942", 80, False, True)
    }
    sizes = read_sizes(str(path), GemmDefaults(dtype_a="fp16", activation="relu", bias=True), "sm_90")
    assert (len(sizes.problems), sizes.notes) == (2, ())
    assert {problem.dtype_a for problem in sizes.problems} == {"bf16"}


def test_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    for name in ("r.yaml", "r.csv"):
        with pytest.raises(ResultsError, match="no such file"):
            read_results(str(tmp_path / name))
