"""Which candidates the timers choose among, and what their choices cost."""

from __future__ import annotations

import pytest

from benchmarks.timing import timer_choice
from benchmarks.timing.timer_choice import JUDGE, Measured
from genkern.command.candidates_file import COLUMNS
from genkern.gemm.problem import GemmProblem
from genkern.timing.libraries import VENDOR

PROBLEM = GemmProblem(16, 32, 64)


def candidates_csv(*rows: dict[str, str]) -> list[str]:
    """Lines of --profile_file's CSV for PROBLEM unless a row says otherwise."""
    same = {"M": "16", "N": "32", "K": "64", "op": "a16w16", "dtype_a": "bf16", "dtype_b": "bf16", "dtype_c": "bf16"}
    same |= {"rowMajorA": "T", "rowMajorB": "N", "bias": "False", "activation": "none"}
    same |= {"outcome": "measured", "stage": "screen"}
    return [",".join(COLUMNS), *(",".join((same | row).get(column, "") for column in COLUMNS) for row in rows)]


def test_reads_measured_candidates_of_the_wanted_problems() -> None:
    """Other problems (by size, layout, bias or activation) and candidates that did not run are left out."""
    lines = candidates_csv(
        {"config": "one", "us": "2.5", "stage": "final"},
        {"config": "two", "us": "", "outcome": "crashed"},
        {"config": "three", "us": "3", "bias": "True"},
        {"config": "four", "us": "3", "rowMajorB": "T"},
        {"config": "six", "us": "3", "activation": "relu"},
        {"config": "five", "us": "3", "M": "17"},
    )
    assert timer_choice.read_candidates(lines, [PROBLEM]) == {PROBLEM: [Measured("one", "final", 2.5)]}


def test_picks_finalists_first_then_others_within_reach() -> None:
    """Finalists come first even when a screening time looks better; others are within 1.5x, without repeats."""
    screened = [Measured(f"s{i}", "screen", 0.9 + i / 10) for i in range(10)]
    picked = timer_choice.pick([*screened, Measured("f2", "final", 1.2), Measured("f1", "final", 1.0)], 3, 20)
    assert picked[:3] == ["f1", "f2", "s0"]
    assert sorted(picked[3:]) == ["s1", "s2", "s3", "s4"]
    assert timer_choice.pick(screened, 2, 3) == timer_choice.pick(screened, 2, 3)
    assert timer_choice.pick([], 3, 3) == []


def test_choice_costs_what_the_judge_says() -> None:
    """A timer's choice is its own fastest, its cost the judge's time of it over the judge's best."""
    times = {JUDGE: {"a": 10.0, "b": 11.0, VENDOR: 9.0}, "do_bench": {"a": 21.0, "b": 20.0, "c": 1.0, VENDOR: 19.0}}
    assert timer_choice.choose(times, "do_bench") == timer_choice.Choice("b", pytest.approx(1.1), "same")
    assert timer_choice.choose(times, "nobody") is None


@pytest.mark.parametrize(
    ("vendor_us", "own_us", "side"), [(9.0, 2.0, "other"), (9.0, 0.5, "same"), (10.04, 2.0, "tie")]
)
def test_side_of_the_vendor(vendor_us: float, own_us: float, side: str) -> None:
    """Taking the config where the judge takes the vendor is the other side; within 0.5 % there is none."""
    times = {JUDGE: {"a": 10.0, VENDOR: vendor_us}, "t": {"a": 1.0, VENDOR: own_us}}
    choice = timer_choice.choose(times, "t")
    assert choice is not None
    assert choice.side == side


def test_report_sums_up_each_timer() -> None:
    """The last table has a line per timer, but none for the judge."""
    sizes = {"1x1x1": {"genkern": {"a": 1.0, "b": 2.0}, JUDGE: {"a": 1.0, "b": 1.04}, "t": {"a": 2.0, "b": 1.0}}}
    text = timer_choice.report(sizes)
    assert "| 1x1x1 | 1.00 | 1.000 | 1.040 |" in text
    assert "| genkern | 1 | 0 | 0 | 0 | 1.000 | 1.000 | 1.000 | 0 |" in text
    assert "| t | 1 | 1 | 1 | 0 | 1.040 | 1.040 | 1.040 | 0 |" in text
    assert f"| {JUDGE} |" not in text
