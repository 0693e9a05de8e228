"""Sizes that nobody chose, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from winner_factory import winner, write_results

from benchmarks.kernels import unfriendly
from genkern.files.gemm_entry import GemmDefaults
from genkern.files.sizes import read_sizes


def test_a_seed_gives_the_same_sizes_and_every_kind_of_them() -> None:
    """Thirds of each dimension are multiples of 128 and of 8; all layouts and pitches are there."""
    problems = unfriendly.drawn(3, 300)
    assert problems == unfriendly.drawn(3, 300)
    assert set(problems[:50]).isdisjoint(unfriendly.drawn(4, 50))
    assert len({problem.layout for problem in problems}) == 4
    assert {unfriendly.pitch_of(problem) for problem in problems} == {"128 bytes", "16 bytes", "less"}
    for name in ("M", "N", "K"):
        sizes = [getattr(problem, name) for problem in problems]
        assert 0.25 < sum(not size % 128 for size in sizes) / 300 < 0.45
        assert 0.5 < sum(not size % 8 for size in sizes) / 300 < 0.8
    assert 0 < sum(problem.bias for problem in problems) < 150
    assert 0 < sum(problem.activation != "none" for problem in problems) < 100


def test_the_table_is_by_layout_and_pitch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of each group the mean of what genkern's kernel gains, and of what is called, which is never slower."""
    path = tmp_path / "r.yaml"
    rows = [winner(16, 10.0, vendor_us=20.0), winner(16, 10.0, row_major_a=False, vendor_us=5.0, choice="vendor")]
    write_results(path, rows)
    unfriendly.main([str(path)])
    said = capsys.readouterr().out
    assert "| TN | 128 bytes | 1 | 2.000 | 2.000 | 2.000 | 2.000 |" in said
    assert "| NN | 16 bytes | 1 | 0.500 | 0.500 | 1.000 | 1.000 |" in said
    assert "| all |  | 2 | 1.000 | 0.500 | 1.414 | 1.000 |" in said


def test_written_sizes_are_read_back(tmp_path: Path) -> None:
    """The list is one that the command takes."""
    path = tmp_path / "sizes.yaml"
    unfriendly.main(["--write_sizes", str(path), "--seed", "2", "--count", "9"])
    assert list(read_sizes(str(path), GemmDefaults(), None).problems) == unfriendly.drawn(2, 9)


@pytest.mark.parametrize("argv", [[], ["r.yaml", "--write_sizes", "s.yaml"]])
def test_one_of_both_is_asked_for(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Neither or both end in one line."""
    with pytest.raises(SystemExit) as ended:
        unfriendly.main(argv)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "give the results to report, or --write_sizes FILE\n"
