"""How two tunings are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import repeatability

from genkern.config import Config
from genkern.formats.tuned_row import TunedRow
from genkern.problem import GemmProblem
from genkern.verify import TIME_COLUMNS

ONE, TWO = Config("tiled", 64, 32, 32), Config("tiled", 64, 64, 32)
SMALL, LARGE = GemmProblem(16, 32, 64), GemmProblem(32, 64, 128, row_major_b=True)


def times_csv(*rows: tuple[str, int, int, int, str, str]) -> list[str]:
    """Lines of --benchmark's CSV with trans, M, N, K, us and config."""
    lines = [",".join(TIME_COLUMNS)]
    for trans, m, n, k, us, config in rows:
        cells = {"trans": trans, "M": m, "N": n, "K": k, "us": us, "config": config}
        lines.append(",".join(str(cells.get(column, "")) for column in TIME_COLUMNS))
    return lines


def test_compares_by_size_and_layout() -> None:
    """Sizes meet by size and layout; a size that did not run again, or is not in B, has no difference."""
    a = [TunedRow(SMALL, ONE, 10.0), TunedRow(LARGE, TWO, 20.0)]
    again = repeatability.read_times(times_csv(("TN", 16, 32, 64, "10.1", ONE.name), ("TT", 32, 64, 128, "", TWO.name)))
    small, large = repeatability.compare(a, [TunedRow(SMALL, TWO, 9.0)], again)
    assert small.again_differs == pytest.approx(1 - 10 / 10.1)
    assert small.b_differs == pytest.approx(0.1)
    assert repeatability.same_winner(small) == "no"
    assert (large.again_differs, large.b_differs) == (None, None)


def test_time_of_another_config_does_not_count() -> None:
    """A time taken of another config than A's winner is none of A's winner."""
    again = repeatability.read_times(times_csv(("TN", 16, 32, 64, "10.0", TWO.name)))
    (repeat,) = repeatability.compare([TunedRow(SMALL, ONE, 10.0)], [], again)
    assert repeat.again_us is None


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
    files = [tmp_path / name for name in ("a.yaml", "b.yaml", "times.csv")]
    files[0].write_text(line % 10.0)
    files[1].write_text(line % 10.5)
    files[2].write_text("\n".join(times_csv(("TN", 16, 32, 64, "9.9", ONE.name))))
    repeatability.main([*map(str, files), "-o", str(tmp_path / "full.jsonl")])
    assert "| 16x32x64 | 10.00 | 9.90 | 1.00% | 10.50 | 4.76% | yes |" in capsys.readouterr().out
    assert '"b_us": 10.5' in (tmp_path / "full.jsonl").read_text()
