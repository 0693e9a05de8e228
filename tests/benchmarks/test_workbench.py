"""What the benchmarks on a GPU share, as far as it needs none."""

from __future__ import annotations

import pytest
import workbench
from hypothesis import given
from hypothesis import strategies as st

from genkern.errors import ResultsError


@given(st.floats(0.5, 1e5), st.integers(1, 300), st.integers(1, 16))
def test_every_copy_is_used(call_us: float, copies: int, least: int) -> None:
    """A sample uses every copy of the weights, about evenly, and makes the fewest calls or takes a millisecond."""
    used = workbench.sample_copies(call_us, copies, least)
    assert set(used) == set(range(copies))
    assert len(used) >= least or len(used) * call_us > 500
    counts = [used.count(copy) for copy in range(copies)]
    assert max(counts) - min(counts) <= 1


def test_short_calls_are_repeated() -> None:
    """A sample of calls of 10 us takes 100 us; of shorter ones it has 32 at most."""
    assert len(workbench.sample_copies(10.0, 2, 4)) == 10
    assert len(workbench.sample_copies(0.1, 2, 4)) == 32


def test_failure_costs_what_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A failing block is said on one line and does not end the benchmark."""
    with workbench.said("16x32x64"):
        raise ValueError("two\nlines")
    assert capsys.readouterr().err == "16x32x64: ValueError: two lines\n"


def test_errors_of_genkern_end_with_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """What a user can put right is one line and status 2."""
    with pytest.raises(SystemExit) as ended, workbench.errors_end():
        raise ResultsError("a.yaml: no such file")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "a.yaml: no such file\n"
