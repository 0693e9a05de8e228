"""Rows that are older than the kernels: which are, and those that are shipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from releases import is_released, report_older
from shipped_rows import rows_in
from winner_factory import winner, write_results

from benchmarks.results import ages
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.kernels.generate import generate
from genkern.result.result import Result

ROOT = Path(__file__).parents[3]
GPU = gpu_for_arch("sm_90")


def test_shipped_rows_of_older_kernels_are_reported() -> None:
    """One row of each format and kind of kernel is looked at. What is older is a warning while kernels are worked on;
    a release, of which CHANGELOG.md has nothing unreleased any more, has no such row."""
    older = ages.ages(sorted((ROOT / "results").glob("*/*.yaml")), some=True, read=rows_in)
    if older:
        report_older(
            f"results of older kernels, first of {len(older)} files: {older[0]} (make results tunes them anew)"
        )


def test_a_release_is_told_by_the_changelog() -> None:
    """Its part of what is unreleased is empty, or not there."""
    assert is_released("# Changelog\n\n## [Unreleased]\n\n## [0.3.0] - 2026-12-01\n\n### Added\n\n- this\n")
    assert is_released("# Changelog\n\n## [0.3.0] - 2026-12-01\n")
    assert not is_released("## [Unreleased]\n\n### Added\n\n- this\n\n## [0.2.0]\n")


def test_the_first_older_row_of_a_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of today's kernels have nothing to say; others are counted, those that say no source among them."""
    new, old = tmp_path / "new.yaml", tmp_path / "old.yaml"
    write_results(new, [of_today(16), of_today(32)])
    assert ages.main([str(new)]) == 0
    assert "every row is of a kernel that genkern generates today" in capsys.readouterr().out
    write_results(
        old, [of_today(16), replace(of_today(32), source="0123456789abcdef"), replace(of_today(64), source="")]
    )
    assert ages.main([str(new), str(old)]) == 1
    name = of_today(32).config.name
    assert capsys.readouterr().out == (
        f"old.yaml: 2 of 3 rows; a16w16 32x4096x4096 ({name}) is of another kernel than today's\n"
    )
    # The first of a kind is in another file, and of today; one that says nothing is of its own kind.
    assert ages.main([str(new), str(old), "--some"]) == 1
    assert capsys.readouterr().out.startswith("old.yaml: 1 of 1 rows looked at; a16w16 64x4096x4096")


def of_today(m: int) -> Result:
    made = winner(m, config=Config("tiled", 16, 32, 64, 1, 1, 4, 2), arch="sm_90", device="NVIDIA H200")
    return replace(made, source=generate(made.problem, [made.config], "sm_90", GPU).source_digest(made.config, GPU))


def test_rows_of_older_kernels_lie_apart() -> None:
    """What `make bundle` packs besides: only older rows, each of a size that no file of the device has by now."""
    for folder in (ROOT / "results").glob("*/older"):
        today = {row.problem for path in folder.parent.glob("*.yaml") for row in rows_in(path)}
        older = [row for path in folder.glob("*.yaml") for row in rows_in(path)]
        assert older
        assert all(ages.is_older(row) for row in older)
        assert len({row.problem for row in older} - today) == len(older)
