"""Tests of benchmarks/farm/two_languages.py: what it says of what was compiled."""

from __future__ import annotations

from benchmarks.farm.two_languages import Made, report


def test_the_report() -> None:
    """Rate and size are of what was compiled, not of what was wanted."""
    text = report([Made("cute", 10, 8, 4.0, 0.002, (20_000,) * 7 + (90_000,))])
    assert "| cute | 8 of 10 | 2.00 | 20.0 | 2.0 |" in text
