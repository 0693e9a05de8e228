"""Tests of genkern/cli/pace.py."""

from __future__ import annotations

import pytest

from genkern.cli.pace import MOST_OF_TIME, Pace


@pytest.mark.parametrize("growth", [0.0, 0.001, 0.1])
def test_writing_is_a_small_share_of_any_run(growth: float) -> None:
    """However long one writing takes, and however it grows; the first comes at once."""
    now_s = spent_s = 0.0
    pace = Pace(lambda: now_s)
    assert pace.due
    writings = 0
    for rows in range(1, 2000):
        now_s += 0.5
        if pace.due:
            cost_s = 0.01 + growth * rows
            with pace.writing():
                now_s += cost_s
            spent_s += cost_s
            writings += 1
    assert writings > 3
    # Of the last writing the wait has only just begun.
    assert spent_s - cost_s <= MOST_OF_TIME * now_s


def test_a_quick_file_is_always_up_to_date() -> None:
    """Where a writing takes a thousandth of what a size takes, it comes with every size."""
    now_s = 0.0
    pace = Pace(lambda: now_s)
    for _ in range(100):
        now_s += 1.0
        assert pace.due
        with pace.writing():
            now_s += 0.001
