"""What the measured process finds wrong in what it times (profiling/server.py, supervised_profiler.py)."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_gpu import FakeGpu, name_of
from server_requests import Parent, simulated
from test_supervised_profiler import candidate, profiler, session

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Outcome
from genkern.profiling import server
from genkern.profiling.checking.verdict import Subject
from genkern.profiling.same_bits.row_bits import RowVerdict
from genkern.profiling.supervised_profiler import SupervisedProfiler
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


class FakeRows:
    """Launches what it is to compare; whose name begins with `us12` has other bits than the rest."""

    made = 0

    def __init__(self, problem: GemmProblem, *_: object) -> None:
        type(self).made += 1

    def check(self, subject: Subject, reference: Subject | None) -> RowVerdict:
        for each in (subject, reference):
            if each is not None:
                each.launch({})
        return RowVerdict("", "abcdef01", 64)

    def bits_of(self, subject: Subject) -> FakeBits:
        subject.launch({})
        return FakeBits(Parent.last.gemm.calls[-1][0] == "us12")


class FakeBits(int):
    """As a tensor is compared."""

    def __eq__(self, other: object) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(all=lambda: int(self) == int(other))  # type: ignore[call-overload]

    __hash__ = int.__hash__


def test_rows_are_compared(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a config with a reference's, and a library's call with configs; what does not run says so."""
    monkeypatch.setattr(server, "RowChecking", FakeRows)
    parent = Parent()
    monkeypatch.setattr(Parent, "last", parent, raising=False)
    one, other = ({"config": name_of(name), "binaries": [name]} for name in ("us10", "us12"))
    answer = parent.ask("rows", **one, reference=other)
    assert answer == {"config": name_of("us10"), "message": "", "row_bits": "abcdef01", "rows": 64}
    assert [name for name, _ in parent.gemm.calls] == ["us10", "us12"]
    assert parent.ask("rows", **one, reference=None)["message"] == ""
    # PyTorch's own call takes 20 us here, and has the bits of whatever is not us12.
    assert parent.ask("alike", calls=["vendor"], candidates=[other, one]) == {"alike": {"vendor": name_of("us10")}}
    assert parent.ask("alike", calls=["vendor"], candidates=[other]) == {"alike": {}}
    assert FakeRows.made == 1
    refused = parent.ask("rows", config=name_of("refused"), binaries=["refused"], reference=None)
    assert refused == {"config": name_of("refused"), "error": "RuntimeError: out of resource: shared memory"}
