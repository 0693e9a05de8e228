"""Tests of genkern.runtime.bundles.table and untuned: which winner serves a problem."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace

import pytest

from genkern.gemm.problem import GemmProblem
from genkern.kernels.contract.argument import Constant, Descriptor
from genkern.kernels.plan import LaunchPlan, PlannedLaunch
from genkern.ops.accumulate import as_full
from genkern.result.package import Package, PackedCall
from genkern.result.result import Proof, Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.table import Device, Table
from genkern.runtime.bundles.untuned_m import (
    Option,
    bound_us,
    by_times,
    least_library_us,
    nearest,
    nearest_winner,
)

H200 = Device("sm_90", "NVIDIA H200", 132)
PLAN = LaunchPlan((PlannedLaunch("kernel", (1, 1, 1), 1, False, ()),), 0, "fp32", 0)


def winner(m: int, reach: tuple[int, int] | None, us: float = 10.0, device: Device = H200, **more: object) -> Result:
    """A winner for M that serves M in `reach`; the library where that is None."""
    calls = (PackedCall(*reach, PLAN, ("0" * 64,), ""),) if reach else ()
    problem = GemmProblem(m, 256, 512)
    return Result(
        problem,
        arch=device.arch,
        device=device.name,
        compute_units=device.compute_units,
        kernel_name=f"tiled_BM{m}_BN64_BK128_GM1_SK1_nW4_nS4",
        choice="config" if reach else "vendor",
        duration_us=us,
        vendor_us=12.0,
        time_source="cudagraph",
        check=Proof("gpu"),
        package=Package(calls),
    )


def table(*winners: Result, device: Device = H200) -> Table:
    return Table([Bundle("here", Contents(winners, {}), None)], device)  # type: ignore[arg-type]


def found(tuned: Table, m: int, **more: object) -> int | None:
    """The M of the winner that serves this one."""
    choice = tuned.find(GemmProblem(m, 256, 512, **more))  # type: ignore[arg-type]
    return choice.winner and choice.winner.problem.M


def test_the_row_of_the_problems_own_m_comes_first() -> None:
    """Whatever its neighbours could serve."""
    tuned = table(winner(16, (1, 63)), winner(64, (17, 200)), winner(32, (17, 63)))
    assert [found(tuned, m) for m in (16, 32, 64)] == [16, 32, 64]


def test_an_m_between_is_its_neighbours() -> None:
    """The one whose time holds, as far as its kernels reach, or the library where it won there; no other problem's."""
    tuned = table(winner(16, (1, 63)), winner(64, (17, 127), 9.0), winner(128, None), winner(256, (129, 10**6), 11.0))
    assert [found(tuned, m) for m in (3, 17, 66, 129, 256)] == [16, 64, 64, 256, 256]
    assert [found(tuned, m) for m in (257, 10**5)] == [None, None]
    assert found(tuned, 16, bias=True) is None
    assert "not tuned" in tuned.find(GemmProblem(16, 512, 512)).why


def test_only_what_is_proved() -> None:
    """For M on both sides of which a call was proved, and for the winner's own by the code that was measured; the
    library serves the rest, though another call has kernels for it.
    """
    rows = winner(16, (1, 63)), winner(64, (17, 200), 9.0), winner(256, (201, 10**6))
    (first,), (second,), (third,) = (row.calls for row in rows)
    marked = (
        replace(rows[0], code="c0de").with_calls((replace(first, code="c0de"),)),
        rows[1].with_calls((replace(second, proved=(20, 64, 70)),)),
        rows[2].with_calls((third,)),
    )
    everything = table(*marked)
    proved = table_of_proved(*marked)
    assert [found(everything, m) for m in (15, 16, 18, 20, 66, 256)] == [16, 16, 64, 64, 64, 256]
    assert [found(proved, m) for m in (15, 16, 18, 20, 66, 256)] == [None, 16, None, 64, 64, None]
    assert proved.find(GemmProblem(256, 256, 512)).why == "its kernels are unproved"
    # A measurement without a check proves nothing.
    unchecked = table_of_proved(replace(marked[0], check=None))
    assert found(unchecked, 16) is None


def table_of_proved(*winners: Result) -> Table:
    return Table([Bundle("here", Contents(winners, {}), None)], H200, only_proved=True)  # type: ignore[arg-type]


def test_the_nearest_whose_kernels_serve() -> None:
    """Of rows in groups, whatever its time; where none serves, the library."""
    tuned = [winner(16, (1, 63), 99.0), winner(64, None), winner(256, (100, 10**6), 9.0)]
    options = [Option(each, next(iter(each.calls), None)) for each in tuned]
    found = [nearest_winner(m, options) for m in (60, 200)]
    assert [each and each.m for each in found] == [16, 256]
    assert nearest_winner(64, options[1:2]) is None


def test_a_row_that_the_library_won_serves_others() -> None:
    """Or that nobody won. With its config, where that is faster than PyTorch's call; its own M is the library's."""
    for choice in ("vendor", "tie"):
        won = replace(winner(64, (17, 127), 11.0), choice=choice, vendor_us=10.0, torch_us=12.0)
        tuned = table(won)
        assert [found(tuned, m) for m in (64, 60)] == [None, 64]
        assert tuned.tuned(won.problem) == [(64, choice)]


def test_another_device_has_no_row() -> None:
    """Another name or another number of units is another device, and is said."""
    for other in (replace(H200, compute_units=66), replace(H200, name="NVIDIA H100"), replace(H200, arch="sm_100")):
        tuned = table(winner(16, (16, 16)), device=other)
        assert found(tuned, 16) is None
        assert tuned.elsewhere == {"NVIDIA H200 (sm_90, 132 units)"}


def test_the_faster_of_two_rows_stays() -> None:
    """In whichever order they come, and the other is counted."""
    slow, fast = winner(16, (16, 16), 12.0), winner(16, (16, 16), 8.0)
    for order in ((slow, fast), (fast, slow)):
        tuned = table(*order)
        assert tuned.find(slow.problem).winner is fast
        assert tuned.doubled == [slow]


def test_measured_times_decide_before_predicted_ones() -> None:
    """A predicted row serves its own M, and that only where no larger one was measured; it is no row of its own."""

    def predicted(m: int, reach: tuple[int, int], us: float = 1.0) -> Result:
        return replace(winner(m, reach, us), check=None, time_source="predicted", vendor_us=None)

    alone = table(predicted(32, (1, 10**6)))
    assert [found(alone, m) for m in (31, 32, 33)] == [None, 32, None]
    assert not alone.find(GemmProblem(32, 256, 512)).exact
    assert alone.find(GemmProblem(32, 256, 512)).why == "predicted, not measured"
    assert (len(alone), alone.predicted) == (1, 1)
    measured = winner(16, (1, 31)), winner(64, (33, 127), 11.9)
    mixed = table(*measured, predicted(8, (8, 8)), predicted(32, (32, 32)), predicted(512, (512, 512)))
    # The library serves 32, since nothing that was measured says otherwise.
    assert [found(mixed, m) for m in (8, 16, 32, 33, 64, 512)] == [16, 16, None, None, 64, 512]
    said = [name.endswith("(predicted)") for _, name in mixed.tuned(GemmProblem(1, 256, 512))]
    assert said == [True, False, True, False, True]


def test_measured_full_sums_before_predicted_fast_ones() -> None:
    """Where a call takes either."""
    fast = GemmProblem(32, 256, 512, "a8w8", "fp8e4m3fn", "fp8e4m3fn", "bf16")
    predicted = replace(winner(32, (32, 32)), problem=fast, check=None, time_source="predicted", vendor_us=None)
    measured = replace(winner(64, (17, 127), 9.0), problem=as_full(replace(fast, M=64)))
    choice = table(predicted, measured).find(fast)
    assert choice.winner is not None
    assert choice.winner.problem == measured.problem
    assert table(predicted).find(fast).predicted


def test_what_is_believed_more_beats_what_is_faster() -> None:
    """A proof any row without one, a measurement a prediction, an idle GPU's time one beside a program; in any order.

    The library's call needs no proof.
    """
    of = functools.partial(winner, 16, (16, 16))
    proved = replace(of(20.0), choice="config")
    best_last = [
        replace(of(1.0), check=None, time_source="predicted"),
        replace(of(2.0), check=Proof("interpreter"), time_source=""),
        replace(of(8.0), time_source="predicted"),
        replace(of(9.0), time_source="cudagraph_shared"),
        proved,
    ]
    for worse, better in itertools.combinations(best_last, 2):
        for order in ((worse, better), (better, worse)):
            tuned = table(*order)
            assert tuned.find(worse.problem).winner is better, (worse, better)
            assert tuned.doubled == [worse]
    by_library = replace(winner(16, None, 15.0), check=None)
    assert table(proved, by_library).find(proved.problem).why == "the library is as fast"


def test_neighbours_are_of_one_kind() -> None:
    """An M that nobody tuned is served by what is believed most: its time is compared with no other kind."""
    proved = winner(16, (1, 63), 10.0)
    shared = replace(winner(64, (17, 127), 2.0), time_source="cudagraph_shared")
    tuned = table(proved, shared)
    assert [found(tuned, m) for m in (15, 64, 60)] == [16, 64, None]
    assert [m for m, _ in tuned.tuned(proved.problem)] == [16, 64]
    assert found(table(shared), 60) == 64


def test_the_nearest() -> None:
    """Of tuned M = 16, 64 and 128 the one with the least distance; of two, the larger one."""
    options = [Option(winner(m, (1, 10**6)), PackedCall(1, 10**6, PLAN, (), "")) for m in (16, 64, 128)]
    for m, wanted in {1: 16, 15: 16, 39: 16, 40: 64, 41: 64, 65: 64, 120: 128}.items():
        found = nearest(m, options)
        assert found is not None
        assert found.m == wanted


def tile(rows: int, *, by_tma: bool, programs: int = 1, cluster: int = 1) -> LaunchPlan:
    """A plan for tiles of C that have so many rows."""
    of_a = (Descriptor("a_desc", "a", (rows, 64), False),) if by_tma else ()
    launch = PlannedLaunch("kernel", (programs, 1, 1), cluster, False, (*of_a, Constant("BLOCK_SIZE_M", rows)))
    return LaunchPlan((launch,), 0, "fp32", 0)


def option(m: int, us: float | None, rows: int | None = None, library: float | None = 12.0, **of: object) -> Option:
    """A winner for M in tiles of so many rows, `us` its time, which serves any M; what more of its plan is said."""
    won = replace(winner(m, (1, 10**6)), duration_us=us, vendor_us=library)
    plan = tile(rows or m, **{"by_tma": False, **of})  # type: ignore[arg-type]
    return Option(won, PackedCall(1, 10**6, plan, (), ""))


def test_a_winners_time_holds_for_no_more_tiles() -> None:
    """As it is for fewer rows, nearly so for more in the same tiles, longer for more tiles that all run at once.

    Also of a family of someone's own, whose parameters nobody knows here.
    """
    of = option(64, 10.0)
    assert [bound_us(m, of) for m in (1, 40, 64)] == [10.0] * 3
    assert bound_us(65, of) == pytest.approx(12.0)
    assert bound_us(65, option(64, 10.0, programs=99)) == pytest.approx(12.0)
    assert bound_us(65, option(64, 10.0, programs=50, cluster=2)) is None
    assert bound_us(65, option(64, 10.0, programs=100)) is None
    # Its config has tiles of 64 rows, of which 40 had rows.
    half_full = replace(of, winner=replace(of.winner, problem=replace(of.winner.problem, M=40)))
    assert 10.0 < bound_us(50, half_full) < 11.0  # type: ignore[operator]
    own = replace(of.winner, kernel_name="cute_ahead_BM64_BN64_BK64_GM1_SK1_nW4_nS1_chunk2_columns")
    assert bound_us(65, replace(of, winner=own)) == bound_us(65, of)
    nameless = replace(of, winner=replace(of.winner, kernel_name="kernel"))
    for none in (replace(of, call=None), option(64, None), nameless):
        assert bound_us(64, none) is None


def test_a_time_does_not_hold_where_tma_fills_most_of_a_tile() -> None:
    """Half of a tile may lie beyond M, or a few rows; of other loads any number."""
    by_tma = option(128, 10.0, by_tma=True)
    assert [bound_us(m, by_tma) is None for m in (5, 63, 64, 127)] == [True, True, False, False]
    assert bound_us(5, option(128, 10.0)) == 10.0
    assert bound_us(1, option(16, 10.0, by_tma=True)) == 10.0
    assert bound_us(5, option(128, 10.0, rows=16, by_tma=True)) == 10.0


def test_what_the_library_takes_at_least() -> None:
    """As long as for fewer rows; below them all as long where there are few, in proportion where there are many."""
    rows = [replace(winner(m, (m, m)), vendor_us=us) for m, us in ((20, 10.0), (30, 15.0), (25, None))]
    assert [least_library_us(m, rows) for m in (1, 20, 25, 30, 90)] == [10.0] * 5
    assert least_library_us(5, rows[2:]) is None
    own = [replace(winner(20, (1, 1)), vendor_us=10.0, torch_us=11.0)]
    assert least_library_us(30, own) == 11.0
    many = [replace(winner(512, (1, 1)), vendor_us=64.0)]
    assert [least_library_us(m, many) for m in (8, 256, 512)] == [1.0, 32.0, 64.0]


def test_the_rule_by_times() -> None:
    """The one that takes least, where the library takes over 2 % longer at either M; of two alike the larger one."""
    few, many = option(16, 8.0, library=9.0), option(64, 9.0)
    assert by_times(16, [few, many]) is few
    assert by_times(32, [few, many]) is None
    assert by_times(32, [few, option(64, 8.9)]) is None
    assert by_times(32, [few, option(64, 8.7)]) is not None
    assert by_times(32, [option(16, 9.0, library=None), option(64, 50.0, library=None)]) is not None
    assert by_times(10, [option(16, 8.0), option(64, 8.0)]).m == 64  # type: ignore[union-attr]
    assert by_times(10, []) is None
