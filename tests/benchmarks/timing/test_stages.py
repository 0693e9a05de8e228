"""Seconds of sizes are read from what `genkern -v` prints."""

from __future__ import annotations

import pytest

from benchmarks.timing.stages import figures, stages_of

SIZES = [[0.4, 3.4, 1.0, 0.16, 0.3], [1.0, 2.0, 0.6, 0.2, 0.2], [0.0, 1.0, 0.6, 0.2, 0.2]]


def log() -> str:
    """As `genkern -v` prints sizes; what stands between them says nothing of times."""
    names = ("prune", "compile and screen", "re-time", "check", "confirm")
    lines = ["note: no key has the types"]
    for size in SIZES:
        stages = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in zip(names, size, strict=True))
        lines += ["1x6144x4096: 23.92 us", f"  measured 4, pruned 901,776; {stages}; 5 % of the binaries"]
    return "\n".join(lines)


def test_stages_of_a_run() -> None:
    """The first size apart, the rest of the run by the others."""
    sizes = stages_of(log())
    assert [list(each.values()) for each in sizes] == SIZES
    assert figures(sizes, 10.26, kernels=False) == {"guided_s_per_size": pytest.approx(2.5)}
    assert figures(sizes, 9.26, kernels=True) == {"kernels_file_s_per_size": pytest.approx(2.0)}


def test_a_log_of_nothing_has_no_figures() -> None:
    """Nothing is said that was not measured."""
    assert set(figures(stages_of("killed"), 1.0, kernels=False).values()) == {None}
