"""Tests of genkern.packing.m_ranges: that batch invariant rows are packed with a kernel for every M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_gemms import GEMV, SPLIT, TILED, TMA, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.kernels.contract.argument import alignment_of
from genkern.packing.m_ranges import MOST_M, gaps
from genkern.packing.rows import PackedRow, rows_of, without_kernels
from genkern.result.result import Proof, Result
from genkern.timing.libraries import StoredAlgorithm

PROBLEM = GemmProblem(64, 256, 512)


def row(m: int, config: Config, problem: GemmProblem = PROBLEM, **more: object) -> Result:
    problem = replace(problem, M=m)
    said = {"sums": sums_of(problem, config, "sm_90"), "batch_invariant": True, "vendor_us": 12.0, **more}
    timed = {"duration_us": 10.0, "time_source": "cudagraph", "check": Proof("gpu"), **said}
    found = Result(problem, config, arch="sm_90", device="NVIDIA H200", **timed)  # type: ignore[arg-type]
    assert found.sums
    return found


def missing(rows: Sequence[PackedRow]) -> list[tuple[int, int]]:
    """The M for which none has a kernel."""
    reaches = [wanted.reach for row in rows for wanted in row.wanted]
    taken = [each for each in reaches if rows[0].winner.problem.row_major_a or alignment_of(each.kernels_of.M) == 1]
    return gaps((each.least_m, each.most_m) for each in taken)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 9)), max_size=6))
def test_gaps_are_what_no_span_has(spans: list[tuple[int, int]]) -> None:
    """Every M is in a span or in a gap, down to gaps of one M."""
    taken = {m for least, more in spans for m in range(least, least + more + 1)}
    found = gaps([(least, least + more) for least, more in spans], 50)
    assert [m for first, last in found for m in range(first, last + 1)] == [m for m in range(1, 51) if m not in taken]


@pytest.mark.parametrize("config", [TILED, SPLIT, TMA, WARP_SPECIALIZED, WARP_SPECIALIZED_SWAPPED])
def test_every_m_has_a_kernel(config: Config) -> None:
    """Of each family, from one row on, by kernels of one order; a library's row has its config for that too."""
    rows = [row(16, config), row(64, config, choice="vendor", vendor="torch"), row(500, config)]
    found = rows_of(rows, None, False).packed
    assert missing(found) == []
    assert {each.winner.order for each in found} == {rows[0].sums}
    orders = {sums_of(w.reach.kernels_of, w.config, "sm_90") for each in found for w in each.wanted}
    assert orders == {rows[0].sums}


def test_what_counts_in_64_bits_is_a_kernel_of_its_own() -> None:
    """Of a vocabulary C has more elements than 32 bits count from some M on."""
    wide = replace(PROBLEM, N=128256)
    assert missing(rows_of([replace(row(64, TILED, wide), batch_invariant=False)], None, False).packed)
    (found,) = rows_of([row(64, TILED, wide)], None, False).packed
    assert missing([found]) == []
    ends = sorted((each.reach.least_m, each.reach.most_m) for each in found.wanted)
    assert ends[-1][0] * wide.N > 2**31


def test_a_column_major_a_may_lie_anywhere() -> None:
    """Kernels for M that are tuned are promised how rows are aligned; one for all others is promised nothing."""
    rows = [row(m, TILED, replace(PROBLEM, row_major_a=False)) for m in (64, 512)]
    assert missing(rows_of(rows, None, False).packed) == []


def test_what_no_config_takes_has_no_kernel() -> None:
    """Lanes of a kernel for few rows add up as no other kernel does."""
    problem = replace(PROBLEM, M=1)
    found = rows_of([row(1, GEMV, problem)], None, False).packed
    ((least, most),) = missing(found)
    assert 1 < least < 64
    assert most == MOST_M
    # A taller winner of another layer changes nothing.
    both = rows_of([row(1, GEMV, problem), row(64, TILED, replace(PROBLEM, N=320))], None, False).packed
    assert len(both) == 2


def test_batch_invariant_rows_stand_beside_others() -> None:
    """Of one problem the faster of each kind; neither serves in the other's place."""
    rows = [row(64, TILED), row(64, TILED), replace(row(64, WARP_SPECIALIZED), batch_invariant=False)]
    rows = [replace(each, duration_us=us) for each, us in zip(rows, (10.0, 9.0, 8.0), strict=True)]
    found = rows_of(rows, None, False)
    assert sorted((each.winner.duration_us, bool(each.winner.batch_invariant)) for each in found.packed) == [
        (8.0, False),
        (9.0, True),
    ]
    kept = without_kernels(next(each.winner for each in found.packed if each.winner.batch_invariant))
    assert kept is not None
    assert kept.order == ""


def test_an_algorithm_is_kept_where_bits_have_shown_its_order() -> None:
    """Of another order, or of none that is known, its row's kernels serve."""
    name = StoredAlgorithm(130000, bytes(64)).name
    for order, kept in (("wgmma k16", name), ("", ""), ("wgmma k16; 2 parts of 256", "")):
        (found,) = rows_of([row(64, TILED, choice="vendor", vendor=name, vendor_sums=order)], None, False).packed
        assert found.winner.vendor == kept
        assert found.wanted


def test_orders_that_do_not_fit_are_refused() -> None:
    """Two in one layer, in one line; a config that adds up in another order than its row says is left out."""
    with pytest.raises(InputError, match="several orders") as error:
        rows_of([row(16, TILED), row(64, SPLIT)], None, False)
    assert "N = 256, K = 512" in str(error.value)
    found = rows_of([row(16, TILED, sums="wgmma k32"), row(64, TILED)], None, False)
    assert [each.winner.problem.M for each in found.packed] == [64]
    assert any("order of sums" in reason for reason in found.left_out)
