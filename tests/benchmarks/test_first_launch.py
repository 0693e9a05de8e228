"""What the first launches of long calls say of their times."""

from __future__ import annotations

from first_launch import Launches, report


def test_report_sets_launches_against_the_sample() -> None:
    """First and second launch have a line each, as shares of the sample; a size without any has none."""
    found = [Launches((110.0 + i, 100.0, 100.0), 100.0) for i in range(3)] + [Launches((900.0, 855.0, 900.0), 900.0)]
    lines = report([("1x2x3", found), ("4x5x6", [])]).splitlines()
    assert lines[2:] == [
        "| 1x2x3 | 4 | 100 | first | 1.000 | 1.015 | 1.105 | 1.119 | 1.120 |",
        "| 1x2x3 | 4 | 100 | second | 0.950 | 0.958 | 1.000 | 1.000 | 1.000 |",
    ]
