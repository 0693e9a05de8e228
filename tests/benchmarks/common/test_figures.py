"""Means, percentiles, tables and the order of sizes, as the benchmarks print them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.common import figures


def test_percentile_interpolates() -> None:
    """Between two values the percentile moves linearly; the ends are the least and the most."""
    values = [4.0, 1.0, 2.0, 3.0]
    assert [figures.percentile(values, share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1, 2.5, 3.7, 4])


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20), st.floats(0, 1))
def test_percentile_is_within_the_values(values: list[float], share: float) -> None:
    """No percentile lies outside the values."""
    assert min(values) - 1e-9 <= figures.percentile(values, share) <= max(values) + 1e-9


@given(st.integers(1, 100))
def test_spread_order_keeps_all(count: int) -> None:
    """The order holds every item once."""
    assert sorted(figures.spread_order(range(count))) == list(range(count))


@given(st.integers(8, 100))
def test_spread_order_begins_everywhere(count: int) -> None:
    """Four of many items come from both halves of the list."""
    chosen = figures.spread_order(range(count), 4)
    assert len(chosen) == 4
    assert min(chosen) < count / 2 <= max(chosen)


def test_table_and_summary() -> None:
    """A table has one line per row and a ruler; a summary of nothing is dashes."""
    assert figures.table(("a", "b"), [(1, "x")]) == "| a | b |\n| --- | --- |\n| 1 | x |"
    assert figures.summary([1.0, 2.0, 3.0]) == "2.000 | 2.800 | 3.000"
    assert figures.summary([]) == "- | - | -"


def test_data_file_is_whole_after_every_size(tmp_path: Path) -> None:
    """What was added can be read before the benchmark ends; without a path nothing is written."""
    data = figures.DataFile(str(tmp_path / "full.jsonl"))
    data.add({"size": "1x2x3", "us": 1.5})
    assert json.loads((tmp_path / "full.jsonl").read_text()) == {"size": "1x2x3", "us": 1.5}
    figures.DataFile(None).add({"size": "1x2x3"})
    assert [path.name for path in tmp_path.iterdir()] == ["full.jsonl"]


def test_figures_by_their_keys() -> None:
    """A mean with the least beside it, the least by a key of its own, and nothing of nothing."""
    assert figures.figure("mean", [4.0, 1.0]) == ["mean: 2.000 (least 1.000, 2 of them)"]
    assert figures.figure("mean", [4.0, 1.0], "least")[1:] == ["least: 1.000"]
    assert figures.figure("mean", [], "least") == []
