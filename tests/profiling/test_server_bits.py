"""What the measured process finds wrong in what it times (profiling/server.py, supervised.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from asked_server import Parent, simulated
from fake_gpu import FakeGpu, name_of
from test_supervised import candidate, profiler, session

from genkern.gemm.records import Outcome
from genkern.profiling.supervised import SupervisedProfiler
from genkern.timing.session import Session

__all__ = ["profiler", "session"]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return simulated(monkeypatch)


def test_counters_that_are_left_are_told(gpu: FakeGpu) -> None:
    """Of the candidate that left them, before another one finds them."""
    parent = Parent()
    assert parent.screen("leaves") == {"config": name_of("leaves"), "wrong": "leaves 1 in counters[0], not zero"}
    assert "samples_us" in parent.screen("us12")


def test_what_was_timed_is_compared(gpu: FakeGpu) -> None:
    """Where that is asked for, after the rounds, with what the timed launches end with."""
    parent = Parent()
    answer = parent.retime("us10", "late", compared=True)
    assert answer["wrong"] == {name_of("late"): f"as timed C is other, with copy {parent.gemm.copies - 1}"}
    assert parent.retime("us10", "late")["wrong"] == {}


@pytest.mark.parametrize("flush", [False, True])
def test_wrong_when_timed_is_wrong(flush: bool, session: Session, profiler: SupervisedProfiler) -> None:
    """Such a winner is none; it is asked for in confirmations, where sums have an order and nothing comes between."""
    session = replace(session, budget=replace(session.budget, icache_flush=flush))
    good, late = candidate("good", 20), candidate("late", 10)
    unordered = replace(candidate("late", 12), deterministic=False)
    assert {m.outcome for m in profiler.retime(session, [good, late])} == {Outcome.MEASURED}
    again = {m.config: m for m in profiler.confirm(session, [good, late, unordered], ["vendor"])}
    wrong = [name for name, m in again.items() if m.outcome is Outcome.WRONG]
    assert wrong == ([] if flush else [late.config.name])
    assert again[late.config.name].message == ("" if flush else "as timed C[0, 0] is 1, alone 2")
