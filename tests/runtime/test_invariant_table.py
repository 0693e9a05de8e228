"""Tests of InvariantTable (genkern.runtime.bundles.table): which winner of one order of sums serves an M."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_table import H200, PLAN, winner

from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_full
from genkern.result.package import Package, PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.table import InvariantTable, Table
from genkern.runtime.bundles.untuned_m import nearest_winner
from genkern.timing.libraries import StoredAlgorithm

SUMS = "wgmma k16"
ALGORITHM = StoredAlgorithm(130000, bytes(64)).name


def marked(m: int, *reaches: tuple[int, int], sums: str = SUMS, us: float = 10.0, **more: object) -> Result:
    """A batch invariant winner for M whose calls serve M in `reaches`."""
    calls = tuple(PackedCall(*reach, PLAN, ("0" * 64,), "", sums=sums) for reach in reaches)
    made = winner(m, (m, m), us)
    return replace(made, sums=sums, batch_invariant=bool(sums), **more).with_calls(calls)  # type: ignore[arg-type]


def bundle(*winners: Result, where: str = "here") -> Bundle:
    return Bundle(where, Contents(winners, {}), None)  # type: ignore[arg-type]


def problem(m: int) -> GemmProblem:
    return GemmProblem(m, 256, 512)


def served_by(table: InvariantTable, *sizes: int) -> list[int | None]:
    """The M of the winner that serves each; all by calls that serve it, of one order of sums."""
    found = []
    for m in sizes:
        choice = table.find(problem(m))
        assert choice.call is None or (choice.call.serves(m) and choice.call.sums == choice.sums)
        found.append(choice.winner and choice.winner.problem.M)
    return found


def test_every_m_is_served_by_one_order() -> None:
    """Its own row, else the neighbour whose time holds, else the nearest whose kernels take it; never one that was
    chosen by its time alone, nor the library.
    """
    fast = winner(32, (1, 10**6), 0.1)
    rows = marked(16, (1, 63)), marked(64, (17, 255), us=9.0), marked(256, (65, 10**6), us=30.0), fast
    table = InvariantTable([bundle(*rows)], H200)
    assert served_by(table, 16, 64, 256) == [16, 64, 256]
    # Where its time holds the smaller one's is less; beyond a tile of it nothing is known.
    assert served_by(table, 1, 15, 17, 32, 100, 257, 10**6) == [16, 16, 64, 64, 64, 256, 256]
    # Where nobody asks for one order the fastest serves.
    assert (Table([bundle(*rows)], H200).find(problem(32)).winner or rows[0]) is fast


def test_where_nobody_asks_for_one_order_the_library_serves_what_it_is_faster_at() -> None:
    """A row that won in its order alone is called by its time then."""
    slow, fast = marked(16, (1, 63), us=13.0, vendor=ALGORITHM), marked(64, (17, 999), us=11.0)
    assert (slow.choice, slow.vendor_us) == ("config", 12.0)
    plain = Table([bundle(slow, fast)], H200)
    assert plain.find(problem(16)).algorithm == ALGORITHM
    assert plain.find(problem(64)).winner is fast
    assert [who for _, who in plain.tuned(problem(1))] == ["vendor", fast.config_name]
    assert served_by(InvariantTable([bundle(slow, fast)], H200), 16, 64) == [16, 64]


def test_a_far_winner_serves_what_neighbours_do_not_take() -> None:
    """Rather than the library, whatever its time; what no call takes has no choice, and is told why."""
    table = InvariantTable([bundle(marked(1, (1, 4)), marked(8, (8, 8)), marked(16, (16, 16), (1, 64)))], H200)
    assert served_by(table, 1, 2, 5, 8, 9, 16, 64, 65) == [1, 1, 16, 8, 16, 16, 16, None]
    assert "takes M = 65" in table.find(problem(65)).why
    assert "--batch_invariant" in table.find(GemmProblem(1, 512, 512)).why


def test_an_algorithm_serves_the_m_that_it_was_tested_on() -> None:
    """Of the library that is here, by its 64 bytes; else the row's own kernels, and for any other M kernels too."""
    rows = marked(16, (1, 63)), marked(64, (64, 64), (17, 10**6), choice="vendor", vendor=ALGORITHM)
    here, elsewhere = (InvariantTable([bundle(*rows)], H200, library=version) for version in (130000, 140000))
    assert here.find(problem(64)).algorithm == ALGORITHM
    assert here.find(problem(64), kernels_alone=True).call is rows[1].calls[0]
    assert None not in served_by(here, 63, 65)
    assert served_by(elsewhere, 64) == [64]
    assert here.tuned(problem(3)) == [(16, rows[0].config_name), (64, "vendor")]
    assert elsewhere.tuned(problem(3))[1] == (64, rows[1].config_name)
    # PyTorch's own call may be any algorithm.
    by_name = InvariantTable([bundle(rows[0], replace(rows[1], vendor="torch"))], H200, library=130000)
    assert served_by(by_name, 64) == [64]


def test_of_two_orders_the_first_bundles_serves() -> None:
    """Wherever the rows of another are: the order of bundles is the user's, and all ranks'."""
    first, second = bundle(marked(16, (1, 63))), bundle(marked(32, (1, 10**6), sums="mma k16"), where="there")
    for bundles, m, sums in (([first, second], 16, SUMS), ([second, first], 32, "mma k16")):
        table = InvariantTable(bundles, H200)
        assert served_by(table, 20) == [m]
        assert table.find(problem(20)).sums == sums
        assert table.others == {problem(1)}
    more = bundle(marked(64, (17, 10**6)), where="there")
    table = InvariantTable([first, more], H200)
    assert served_by(table, 16, 64, 1000) == [16, 64, 64]
    assert not table.others


def test_what_may_vary_is_of_no_order() -> None:
    """Sums in the order in which programs happen to run, another device's, and of unproved calls where only proved ones
    may serve.
    """
    ordered = marked(16, (1, 63))
    unordered = replace(ordered, package=Package(ordered.calls, deterministic=False))
    assert len(InvariantTable([bundle(unordered)], H200)) == 0
    assert len(InvariantTable([bundle(marked(16, (1, 63)))], replace(H200, compute_units=66))) == 0
    proved = marked(16, (1, 63), (64, 999))
    proved = proved.with_calls((replace(proved.calls[0], proved=(1, 63)), proved.calls[1]))
    assert served_by(InvariantTable([bundle(proved)], H200, only_proved=True), 16, 63, 64) == [16, 16, None]


def test_full_sums_serve_where_fast_ones_have_no_rows() -> None:
    """For every M of a layer, or for none."""
    fp8 = GemmProblem(16, 256, 512, "a8w8", "fp8e4m3fn", "fp8e4m3fn")
    fast = replace(marked(16, (1, 63)), problem=fp8)
    full = replace(marked(64, (1, 10**6)), problem=replace(as_full(fp8), M=64))
    both, alone = (InvariantTable([bundle(*rows)], H200) for rows in ((fast, full), (full,)))
    assert alone.find(replace(fp8, M=200)).winner is full
    assert both.find(replace(fp8, M=16)).winner is fast
    assert both.find(replace(fp8, M=200)).call is None
    assert both.find(replace(as_full(fp8), M=200)).winner is full


@pytest.mark.parametrize("m", [1, 7, 40, 5000])
def test_the_choice_hangs_on_the_bundle_alone(m: int) -> None:
    """In whatever order its winners stand: each rank comes to the same; of groups by the nearest M."""
    rows = [marked(1, (1, 10**6)), marked(16, (1, 10**6), us=3.0), marked(64, (1, 10**6), us=3.0)]
    found = {served_by(InvariantTable([bundle(*order)], H200), m)[0] for order in (rows, rows[::-1])}
    assert len(found) == 1
    grouped = InvariantTable([bundle(*rows)], H200, nearest_winner)
    assert served_by(grouped, m) == [{1: 1, 7: 1, 40: 64, 5000: 64}[m]]
