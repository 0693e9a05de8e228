"""Tests of genkern/cli/status.py: what `genkern status` says of results that came without their journal."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from command import run_here
from winner_factory import CONFIG, winner, write_results

from genkern.cli.status import results_lines

MADE = [winner(16), winner(64, 123.4, bias=True)]
WRITTEN_S = time.mktime((2026, 3, 4, 5, 6, 0, 0, 0, -1))


def test_results_without_a_journal(hostile_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, when, time with its source, device, Triton and config; status 0, and nothing is written."""
    path = hostile_path / "r.yaml"
    write_results(str(path), MADE)
    os.utime(path, (WRITTEN_S, WRITTEN_S))
    ran = run_here(capsys, "status", path)
    assert (ran.status, ran.err) == (0, "")
    lines = results_lines(str(path))
    assert ran.out.splitlines() == results_lines(str(path), columns=100)
    assert lines[0].endswith(": results of 2 sizes, written 2026-03-04 05:06; no journal is beside it")
    told = f"rocprofv3 AMD Instinct MI300X, 304 compute units 3.7.0 {CONFIG.name}"
    assert " ".join(lines[2].split()) == f"16x4096x4096 a16w16 bf16 10.00 {told}"
    assert " ".join(lines[3].split()) == f"64x4096x4096 a16w16 bf16 bias 123.40 {told}"
    assert [file.name for file in hostile_path.iterdir()] == ["r.yaml"]


def test_a_csv_says_how_many_compute_units(tmp_path: Path) -> None:
    """AITER's columns have no device by name, and rows of other libraries are told by theirs."""
    path = tmp_path / "r.csv"
    write_results(str(path), MADE[:1])
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[1].replace(",genkern,", ",hipblaslt,")]) + "\n")
    said = [" ".join(line.split()) for line in results_lines(str(path))]
    assert said[2] == f"16x4096x4096 a16w16 bf16 10.00 measured gfx942, 304 compute units {CONFIG.name}"
    assert said[3].startswith("16x4096x4096 a16w16 bf16 10.00 hipblaslt gfx942, 304 compute units")


def test_what_is_no_results_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, status 2."""
    (tmp_path / "notes.yaml").write_text("my notes\n")
    assert "notes.yaml" in run_here(capsys, "status", tmp_path / "notes.yaml").refusal
