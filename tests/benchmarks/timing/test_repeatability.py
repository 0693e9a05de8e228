"""How two tunings are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.timing import repeatability
from genkern.command.candidates_file import COLUMNS
from genkern.formats.tuned_row import TunedRow
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

ONE, TWO = Config("tiled", 64, 32, 32), Config("tiled", 64, 64, 32)
SMALL, LARGE = GemmProblem(16, 32, 64), GemmProblem(32, 64, 128, row_major_b=True)


def candidates_csv(*rows: tuple[GemmProblem, Config, float | str, str]) -> list[str]:
    """Lines of --profile_file's CSV with problem, config, us and stage."""
    lines = [",".join(COLUMNS)]
    for problem, config, us, stage in rows:
        cells = {"M": problem.M, "N": problem.N, "K": problem.K, "rowMajorA": "T", "us": us, "stage": stage}
        cells |= {"rowMajorB": "NT"[problem.row_major_b], "config": config.name}
        lines.append(",".join(str(cells.get(column, "")) for column in COLUMNS))
    return lines


def test_compares_by_size_layout_and_config() -> None:
    """The time again is that of A's own winner; a size that did not run again, or is not in B, has no difference."""
    a = [TunedRow(SMALL, ONE, 10.0), TunedRow(LARGE, TWO, 20.0)]
    lines = candidates_csv((SMALL, ONE, 10.1, "final"), (SMALL, TWO, 9.0, "final"), (LARGE, ONE, 20.0, "final"))
    small, large = repeatability.compare(a, [TunedRow(SMALL, TWO, 9.0)], repeatability.read_finals(lines))
    assert small.again_differs == pytest.approx(1 - 10 / 10.1)
    assert small.b_differs == pytest.approx(0.1)
    assert repeatability.same_winner(small) == "no"
    assert (large.again_differs, large.b_differs) == (None, None)


def test_only_finals_count() -> None:
    """A screening is one sample, and what failed has no time."""
    lines = candidates_csv((SMALL, ONE, 10.0, "screen"), (LARGE, TWO, "", "final"))
    assert repeatability.read_finals(lines) == {}


def test_report_counts_within_two_percent() -> None:
    """The report counts winners whose time came again within 2 %, and gives the median of B's differences."""
    repeats = [
        repeatability.Repeat("1x1x1", "a", 100.0, again_us, "a", b_us)
        for again_us, b_us in ((98.5, 100.0), (101.5, 99.0), (103.0, 90.0))
    ]
    text = repeatability.report(repeats)
    assert "within 2%: 2 of 3. B's time differs from A's by 1.00% in the median." in text


def test_command_reads_result_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command takes results files as tune_gemm writes them, and the CSV, and writes the full data."""
    line = "- {'M': 16, 'N': 32, 'K': 64, 'rowMajorA': 'T', 'rowMajorB': 'N', 'BLOCK_SIZE_M': 64, 'BLOCK_SIZE_N': 32,"
    line += " 'BLOCK_SIZE_K': 32, 'GROUP_SIZE_M': 1, 'SPLIT_K': 1, 'num_warps': 4, 'num_stages': 2, 'time_us': %s}\n"
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "b.csv")]
    files[0].write_text(line % 10.0)
    files[1].write_text(line % 10.5)
    files[2].write_text("\n".join(candidates_csv((SMALL, ONE, 9.9, "final"))))
    repeatability.main([*map(str, files), "-o", str(tmp_path / "full.jsonl")])
    assert "| 16x32x64 | 10.00 | 9.90 | 1.00% | 10.50 | 4.76% | yes |" in capsys.readouterr().out
    assert '"b_us": 10.5' in (tmp_path / "full.jsonl").read_text()
