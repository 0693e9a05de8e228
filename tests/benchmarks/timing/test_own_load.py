"""What is said of rounds that time long calls: by how much they are off, and how a clock settles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.common.workbench import Bench
from benchmarks.timing.own_load import (
    ALONE,
    INTERLEAVED,
    LIBRARY,
    WINNER,
    Alone,
    Size,
    report,
    run_alone,
    timed,
)
from genkern.gemm.problem import GemmProblem
from genkern.profiling.clocks import ThrottleGuard
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget

TIMES = {
    ALONE: {WINNER: 100.0, VENDOR: 110.0, LIBRARY: 102.0},
    INTERLEAVED: {WINNER: 104.0, VENDOR: 110.0, LIBRARY: 103.0},
}


def settling(us: float) -> Alone:
    """10 % faster for 10 ms, in samples of 5 ms, then as it stays."""
    return Alone(tuple((5_000.0 * i, us * (0.9 if i < 2 else 1.0)) for i in range(40)), 1500.0, 690.0)


def test_a_run_alone_says_when_its_samples_began() -> None:
    """By the device's own time; of the longest calls there are some all the same."""
    taken = iter([10.0, 20.0, 30.0, 40.0, 50.0, 60.0])
    assert run_alone(lambda: next(taken), 100, 8_000) == [(0, 10), (1_000, 20), (3_000, 30), (6_000, 40)]
    assert len(run_alone(lambda: 9e6, 1, 1e6)) == 4


def test_a_run_alone_settles() -> None:
    """Its time is that of the second half, and each span's stands beside it; in some spans nothing may begin."""
    run = settling(50.0)
    assert run.settled_us == 50.0
    assert run.spans() == pytest.approx([0.9, 0.9, 1, 1, 1, 1])
    assert Alone(((0.0, 9.0), (50_000.0, 10.0), (99_000.0, 10.0)), None, None).spans()[1:4] == [None, None, None]


def test_rounds_are_off_where_their_ratios_are_not_the_judges() -> None:
    """Also a ratio that is on the other side of 1, where the judge's is no tie."""
    runs = {WINNER: [settling(100.0)], LIBRARY: [settling(102.0)]}
    size = Size("4096x4096x4096", TIMES, 0.7, runs)
    assert list(size.errors()) == pytest.approx([1 / 1.04 - 1, 103 / 102 / 1.04 - 1])
    said = report([size])
    first, off, spans = said.split("\n\n")
    assert "| 4096x4096x4096 | 100.0 | 1.1000 | 1.0577 | 1.0200 | 0.9904 |" in first
    assert "| 1500 MHz, 690 W | 1500 MHz, 690 W |" in first
    assert "| 2 | 3.37% | 3.75% | 3.85% | 1 | 0.70 |" in off
    assert "| 5 to 10 | 2 | 0.9000 | 0.9000 | 0.9000 |" in spans
    assert "| 60 to 120 | 2 | 1.0000 |" in spans


class Idle:
    """A bench of calls that take as long as their numbers say, on a device that says nothing of itself."""

    problem = GemmProblem(4096, 4096, 4096)
    gemm: Any = SimpleNamespace(copies=4, session=SimpleNamespace(budget=Budget()))
    timer: Any = SimpleNamespace(
        launch_us=lambda call, copy: call(copy), prepare=lambda call, copies: lambda: call(copies[0])
    )
    guard = ThrottleGuard(None)
    race = Bench.race


def test_both_time_the_same_calls() -> None:
    """In rounds and alone, with what each run alone showed."""
    calls: Any = {WINNER: lambda copy: 100.0, VENDOR: lambda copy: 110.0}
    bench: Any = Idle()
    size = timed(bench, calls, 0.05)
    assert size.times_us == {each: {WINNER: 100.0, VENDOR: 110.0} for each in (ALONE, INTERLEAVED)}
    assert {name: [len(run.samples) for run in runs] for name, runs in size.runs.items()} == {
        WINNER: [11, 11],
        VENDOR: [10, 10],
    }
    assert size.took_s > 0
