"""Tests of benchmarks/library_best.py: what it says of what it measured."""

from __future__ import annotations

from library_best import Best, report

BEST = Best("16x64x64", 12.0, 10.0, "cublaslt 131000 00", "id 66 tile 23", "heuristic", 2, 32, 0)


def test_a_line_a_size_and_the_mean() -> None:
    """PyTorch's time over the best; where no algorithm is faster than PyTorch's own call, that is the best."""
    other = Best("1x64x64", 10.0, 11.0, "cublaslt 131000 01", "id 66 tile 24", "enumerated", 9, 32, 1)
    found = Best("8x64x64", 12.0, 10.0, "cublaslt 131000 02", "id 66 tile 25", "enumerated", 8, 32, 0)
    lines = report([BEST, other, found]).splitlines()
    assert lines[2] == "| 16x64x64 | 12.00 | 10.00 | 1.200 | heuristic 3 of 32 | id 66 tile 23 |"
    assert "| 1.000 |" in lines[3]
    assert lines[-2] == f"3 sizes: geomean {1.2 ** (2 / 3):.4f}"
    assert lines[-1] == "best that the heuristic does not return: 1; faster ones that are wrong: 1"
    assert "0" in report([])
