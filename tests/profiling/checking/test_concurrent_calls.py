"""Tests of profiling/checking/concurrent_calls.py: calls in company, and launches as they were timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from test_verdict import COUNTERS, SQUARE, checking, reference

from genkern.profiling.checking.concurrent_calls import counters_left, fault_of_timed
from genkern.profiling.checking.verdict import Subject, WorkBuffer

torch = pytest.importorskip("torch")

Operands = dict[str, Any]
WORK = WorkBuffer("workspace", SQUARE.M * SQUARE.N, torch.float32)


def through_workspace(x: Operands) -> None:
    """A product whose sums lie in the workspace before they come to C."""
    x["workspace"].copy_(reference(x).flatten())
    x["c"].copy_(x["workspace"].view_as(x["c"]))


def by_the_first(x: Operands) -> None:
    """The same, but for sums that are there already: right whenever the call before was the same."""
    if bool(x["workspace"].isnan().any()):
        through_workspace(x)
    x["c"].copy_(x["workspace"].view_as(x["c"]))


def leaves_a_counter(x: Operands) -> None:
    """The same, but that every third call does not put its counter back, which the second of two would hide."""
    through_workspace(x)
    COUNTED.append(1)
    if len(COUNTED) % 3 == 0:
        x["counters"][1] = 1


COUNTED: list[int] = []


def test_a_kernel_that_keeps_to_itself_passes() -> None:
    """Whatever lies in the workspace from the call before."""
    verdict = checking(SQUARE).check(Subject(through_workspace, (WORK, COUNTERS)))
    assert (verdict.passed, verdict.message) == (True, "")


@pytest.mark.parametrize(
    ("launch", "message"),
    [(by_the_first, "calls in a row: C["), (leaves_a_counter, "calls in a row: leaves 1 in counters[1], not zero")],
)
def test_company_shows_what_a_call_alone_does_not(launch: Callable[[Operands], None], message: str) -> None:
    """A sum of the call before, which had other inputs, and a counter that is left now and then."""
    COUNTED.clear()
    verdict = checking(SQUARE).check(Subject(launch, (WORK, COUNTERS)))
    assert not verdict.passed
    assert verdict.message.startswith(f"exact inputs: {message}")


@pytest.mark.parametrize("used", [False, True])
def test_only_kernels_that_keep_something_are_asked(used: bool) -> None:
    """By a call each with two kinds of inputs, beside those of the rounds."""
    calls: list[int] = []

    def launch(x: Operands) -> None:
        calls.append(1)
        x["c"].copy_(reference(x))

    assert checking(SQUARE).check(Subject(launch, (WorkBuffer("workspace", 4, torch.float32, used=used),))).passed
    assert len(calls) == 2 + 1 + 1 + 2 * used


def test_timed_launches_leave_what_one_alone_does() -> None:
    """To the bit, in whatever C lies; rows that nobody writes stay what they were."""
    for dtype in (torch.bfloat16, torch.float32, torch.float8_e4m3fn):
        c, counters = torch.zeros(4, 6).to(dtype), torch.zeros(3, dtype=torch.int32)
        right = torch.arange(18.0).view(3, 6).to(dtype)
        assert fault_of_timed(c, [counters], lambda: c[:3].copy_(right), lambda: c[:3].copy_(right)) == ""  # noqa: B023

        def timed() -> None:
            c[:3].copy_(right)  # noqa: B023
            c[2, 4] = 32.0  # noqa: B023

        said = fault_of_timed(c, [counters], lambda: c[:3].copy_(right), timed)  # noqa: B023
        assert "C[2, 4] is 32, alone 16; 1 of 24 " in said


def test_counters_are_zero_behind_either() -> None:
    """And again from then on, for the next one."""
    c, counters = torch.zeros(2, 2), [torch.zeros(3, dtype=torch.int32) for _ in range(2)]
    for alone, timed in (
        (lambda: None, lambda: counters[1][2].add_(5)),
        (lambda: counters[1][2].add_(5), lambda: None),
    ):
        assert fault_of_timed(c, counters, alone, timed) == "leaves 5 in counters[2], not zero"
        assert counters_left(counters) == ""


@pytest.mark.gpu
def test_streams_and_graphs_show_memory_that_calls_share() -> None:
    """A kernel that keeps its sums in one place, whatever it is given: on two streams, or in graphs alone."""
    shared = torch.empty(SQUARE.M * SQUARE.N, device="cuda")

    def kept_in(place: Callable[[Operands], Any]) -> Callable[[Operands], None]:
        def launch(x: Operands) -> None:
            sums = place(x)
            sums.copy_((x["a"].double() @ x["b"].double()).float().flatten())
            torch.cuda._sleep(2_000_000)
            x["c"].copy_(sums.view_as(x["c"]))

        return launch

    def in_graphs(x: Operands) -> Any:
        return shared if torch.cuda.is_current_stream_capturing() else x["workspace"]

    for place, message in (
        (lambda x: x["workspace"], ""),
        (lambda x: shared, "exact inputs: calls on two streams: C["),
        (in_graphs, "exact inputs: replays of two graphs: C["),
    ):
        verdict = checking(SQUARE, device="cuda").check(Subject(kept_in(place), (WORK, COUNTERS)))
        assert verdict.passed is not bool(message), verdict
        assert verdict.message.startswith(message)
