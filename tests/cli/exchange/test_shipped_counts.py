"""What an installed genkern says of the results that it was released with is what the checkout's results say."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import run_here

from genkern.cli import ops_table


def test_the_shipped_counts_are_those_of_the_results() -> None:
    """`make docs` writes them into the package."""
    found, _ = ops_table.measured_sizes([str(ops_table.RESULTS)])
    assert ops_table.shipped_counts() == {key: len(problems) for key, problems in found.items()}


def test_an_installed_genkern_says_what_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without results beside the package the table is the same."""
    here = [line for line in run_here(capsys, "ops").out.splitlines() if not line.startswith("note: ")]
    monkeypatch.setattr(ops_table, "RESULTS", tmp_path / "none")
    assert run_here(capsys, "ops").out.splitlines() == here
    assert any(f"measured {ops_table.shipped_counts()['a16w16', 'sm_90']}" in line for line in here)
