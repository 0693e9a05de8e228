"""Tests of genkern.runtime.table and untuned: which winner serves a problem."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.problem import GemmProblem
from genkern.kernels.plan import Launch, LaunchPlan
from genkern.runtime.bundle import Bundle
from genkern.runtime.packed import Contents, PackedCall, PackedWinner
from genkern.runtime.table import Device, Table
from genkern.runtime.untuned import (
    Option,
    by_model,
    by_padding,
    library_us,
    modelled_us,
    nearest,
    next_larger,
    padded_m,
)

H200 = Device("sm_90", "NVIDIA H200", 132)
PLAN = LaunchPlan((Launch("kernel", (1, 1, 1), 1, False, ()),), 0, "fp32", 0)


def winner(
    m: int, reach: tuple[int, int] | None, us: float = 10.0, device: Device = H200, **more: object
) -> PackedWinner:
    """A winner for M that serves M in `reach`; the library where that is None."""
    calls = (PackedCall(*reach, PLAN, ("0" * 64,), ""),) if reach else ()
    problem = GemmProblem(m, 256, 512)
    named = device.arch, device.name, device.compute_units
    choice = "config" if reach else "vendor"
    return PackedWinner(problem, *named, f"config_{m}_{us}", choice, "", us, 12.0, "cudagraph", "gpu", "", (), calls)


def table(*winners: PackedWinner, device: Device = H200) -> Table:
    return Table([Bundle("here", Contents(winners, {}), None)], device)  # type: ignore[arg-type]


def found(tuned: Table, m: int, **more: object) -> int | None:
    """The M of the winner that serves this one."""
    choice = tuned.find(GemmProblem(m, 256, 512, **more))  # type: ignore[arg-type]
    return choice.winner and choice.winner.problem.M


def test_its_own_row_comes_first() -> None:
    """Whatever its neighbours could serve."""
    tuned = table(winner(16, (1, 63)), winner(64, (17, 200)), winner(32, (17, 63)))
    assert [found(tuned, m) for m in (16, 32, 64)] == [16, 32, 64]


def test_an_m_between_is_its_neighbours() -> None:
    """The next larger, as far as its kernels reach, or the library where it won there; none of another problem."""
    tuned = table(winner(16, (1, 63)), winner(64, (17, 127)), winner(128, None), winner(256, (129, 10**6)))
    assert [found(tuned, m) for m in (3, 17, 65, 129, 512, 513)] == [16, 64, None, 256, 256, None]
    assert found(tuned, 16, bias=True) is None
    assert "not tuned" in tuned.find(GemmProblem(16, 512, 512)).why


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


@given(m=st.integers(1, 20000), n=st.sampled_from([4096, 4097]))
def test_aiters_padding(m: int, n: int) -> None:
    """Padded M is never smaller, is a multiple of its step or a power of two, and is the same for a padded one."""
    fine, coarse = (padded_m(m, n, coarse) for coarse in (False, True))
    assert m <= fine < m + 128
    assert padded_m(fine, n, False) == fine
    assert coarse == 8192 if m > 8192 and n > 4096 else (coarse >= m and coarse & (coarse - 1) == 0)


RULES = {
    by_padding: {1: 16, 15: 16, 40: 64, 65: 128, 100: 128, 129: None},
    nearest: {1: 16, 15: 16, 39: 16, 41: 64, 65: 64, 120: 128},
    next_larger: {1: 16, 15: 16, 17: 64, 65: 128, 129: 128, 256: 128, 257: None},
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(rule: object) -> None:
    """Of tuned M = 16, 64 and 128, which each rule takes."""
    options = [Option(winner(m, (1, 10**6)), PackedCall(1, 10**6, PLAN, (), "")) for m in (16, 64, 128)]
    for m, wanted in RULES[rule].items():  # type: ignore[index]
        option = rule(m, options)  # type: ignore[operator]
        assert (option and option.m) == wanted, m


def test_the_librarys_time_between() -> None:
    """On a line through the neighbours, and in proportion beyond the largest."""
    rows = [replace(winner(m, (m, m)), library_us=us) for m, us in ((10, 10.0), (20, 30.0), (40, None))]
    assert [library_us(m, rows) for m in (1, 10, 15, 20, 40)] == [10.0, 10.0, 20.0, 30.0, 60.0]
    assert library_us(5, []) is None


FEW, MANY = "tiled_BM16_BN64_BK128_GM1_SK1_nW4_nS4", "tiled_BM128_BN128_BK64_GM8_SK1_nW8_nS3"


def option(m: int, config: str, us: float | None, library: float | None, n: int = 8192, k: int = 8192) -> Option:
    """An option for M whose kernels serve any, of a real config; `library` is the library's time there."""
    problem = GemmProblem(m, n, k)
    row = replace(winner(m, (1, 10**6)), problem=problem, config=config, time_us=us, library_us=library)
    return Option(row, row.calls[0])


def test_a_modelled_time_is_its_own_where_it_was_measured() -> None:
    """And grows with the tiles that M has of it."""
    of = option(16, FEW, 40.0, 50.0)
    assert modelled_us(16, of) == 40.0
    times = [modelled_us(m, of) for m in (1, 16, 64, 512, 4096)]
    assert times == sorted(times)  # type: ignore[type-var]
    assert times[0] == pytest.approx(40.0, rel=0.02)
    assert times[-1] > 10 * times[0]  # type: ignore[operator]
    for none in (replace(of, call=None), option(16, FEW, None, 50.0)):
        assert modelled_us(16, none) is None


def test_the_rule_by_modelled_time() -> None:
    """Small tiles for few rows, large ones for many, and the library where its time between is no longer."""
    options = [option(16, FEW, 40.0, 45.0), option(4096, MANY, 800.0, 900.0)]
    assert [chosen and chosen.m for chosen in (by_model(m, options) for m in (17, 4000))] == [16, 4096]
    slow = [replace(each, winner=replace(each.winner, library_us=each.winner.time_us)) for each in options]
    assert by_model(16, slow) is None
    unknown = [option(16, FEW, None, None), option(64, MANY, None, None)]
    assert by_model(20, unknown) is next_larger(20, unknown)
    assert by_model(20, []) is None
