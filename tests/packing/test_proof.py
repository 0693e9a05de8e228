"""Tests of genkern.packing.proof: for which M calls are proved, and what is left of a bundle."""

from __future__ import annotations

from dataclasses import replace

import pytest
from computing_gpu import planned, planned_row
from layout_cases import problem_of

from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Check, Outcome
from genkern.kernels.contract.expression import name
from genkern.packing.proof import CallProof, Place, has_no_room, sizes_to_prove, with_proofs
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.records import Contents
from genkern.runtime.bundles.untuned_m import Relatives

PROBLEM = GemmProblem(128, 128, 256)
MOST = (2**31 - 1) // PROBLEM.K


def contents_of(*problems: GemmProblem) -> Contents:
    return planned([planned_row(each) for each in problems])[0].contents


def only(problem: GemmProblem) -> tuple[Result, PackedCall]:
    """A winner and the call that masks rows."""
    (winner,) = contents_of(problem).winners
    return winner, winner.calls[-1]


def test_both_ends_the_winners_own_and_some_between() -> None:
    """In their order, the same in every run, and others for another call."""
    winner, call = only(PROBLEM)
    sizes = sizes_to_prove(winner, call)
    # A's elements are counted in 31 bits.
    assert (call.least_m, call.most_m) == (1, MOST)
    assert sizes[0] == 1
    assert sizes[-1] == MOST
    assert PROBLEM.M in sizes
    assert len(sizes) == 5
    assert list(sizes) == sorted({*sizes})
    assert sizes_to_prove(winner, call) == sizes
    assert sizes_to_prove(winner, replace(call, code="other")) != sizes
    assert sizes_to_prove(winner, replace(call, least_m=40, most_m=40)) == (40,)
    assert sizes_to_prove(winner, replace(call, least_m=40, most_m=41)) == (40, 41)


@pytest.mark.parametrize("m", [64, 100, 77])
def test_what_lies_column_by_column_has_its_own_sizes(m: int) -> None:
    """Multiples of what its kernels were promised of rows, and no others."""
    problem = problem_of("a16w16", False, True, m)
    relatives = Relatives.of(problem)
    winner, call = only(problem)
    for size in sizes_to_prove(winner, call):
        assert Relatives.of(replace(problem, M=size)) == relatives


def test_no_further_than_the_dispatcher_would_go() -> None:
    """Its workspace is bounded for an M that nobody tuned, but not for the winner's own."""
    winner, call = only(PROBLEM)
    # A MiB for each row.
    plan = replace(call.plan, workspace=name("M") * 2**18)
    limited = replace(call, plan=plan)
    assert sizes_to_prove(winner, limited)[-1] == PROBLEM.M
    assert max(size for size in sizes_to_prove(winner, limited) if size != PROBLEM.M) == 64
    nothing = replace(call, plan=replace(plan, workspace=2**40), least_m=129)
    assert sizes_to_prove(winner, nothing) == ()


def test_what_is_proved_is_marked_and_serves_no_more() -> None:
    """Where all M were, the call ends where the dispatcher would; where the GPU had no room, its proof does."""
    contents = contents_of(PROBLEM)
    winner = contents.winners[0]
    last = len(winner.calls) - 1

    def proved(proof: CallProof) -> PackedCall:
        return with_proofs(contents, {(0, last): proof}, {}).winners[0].calls[last]

    whole = proved(CallProof((1, 128, 5000), True))
    assert (whole.least_m, whole.most_m, whole.proved, whole.is_proved) == (1, 5000, (1, 128, 5000), True)
    part = proved(CallProof((1, 128), False))
    assert (part.most_m, part.proved, part.is_proved) == (MOST, (1, 128), False)
    assert winner.is_proved(part, 77)
    assert not winner.is_proved(part, 129)
    assert proved(CallProof((), False)) == winner.calls[last]


def test_what_is_wrong_is_left_out_with_its_binary() -> None:
    """A masked call costs itself; the winner's own makes it the library's, or nobody's where none was measured."""
    contents = contents_of(PROBLEM)
    wrong = CallProof((), False, "at M = 1: C[0, 0] is 1, expected 2")
    calls = contents.winners[0].calls
    assert [call.least_m for call in calls] == [128, 1]

    def left(*places: Place, of: Contents = contents) -> Contents:
        return with_proofs(of, dict.fromkeys(places, wrong), {})

    (winner,) = left((0, 1)).winners
    assert winner.calls == calls[:1]
    assert set(left((0, 1)).binaries) == set(calls[0].binaries)
    (winner,) = left((0, 0)).winners
    assert (winner.choice, winner.duration_us, winner.calls) == ("vendor", 12.0, ())
    assert left((0, 0)).binaries == {}
    unmeasured = replace(contents, winners=(replace(contents.winners[0], vendor_us=None),))
    assert left((0, 0), of=unmeasured).winners == ()
    # The library won: what serves other M has nothing to lose but itself.
    tied = replace(contents, winners=(replace(contents.winners[0], choice="tie"),))
    (winner,) = left((0, 0), of=tied).winners
    assert (winner.choice, winner.calls) == ("tie", calls[1:])


def test_kernels_beside_products() -> None:
    """Are marked or left out by name; what nobody looked at stays as it was."""
    contents = contents_of(PROBLEM)
    sha256 = next(iter(contents.binaries))
    keys = [("sm_90", name) for name in ("good", "bad", "before", "open")]
    contents = replace(contents, row_kernels=dict.fromkeys(keys, sha256), proved_rows=frozenset({keys[2]}))
    found = with_proofs(contents, {}, {keys[0]: True, keys[1]: False})
    assert set(found.row_kernels) == {keys[0], keys[2], keys[3]}
    assert found.proved_rows == {keys[0], keys[2]}
    # The winner's two calls are proved by nobody.
    assert found.proofs == (2, 5)


def test_no_room_is_nothing_wrong() -> None:
    """A session that was refused, or a check that ran out of memory; a crash is another thing."""
    refused = Check("c", False, 1.0, 1.0, "1x1x1", NOT_CHECKED, "GPU 0 cannot hold it", Outcome.LAUNCH_FAILED)
    assert has_no_room(refused)
    assert has_no_room(replace(refused, lost=Outcome.UNCHECKED, message="no memory to check it"))
    assert not has_no_room(replace(refused, lost=Outcome.CRASHED, message="SIGSEGV"))
    assert not has_no_room(replace(refused, method="gpu", lost=None, message="C[0, 0] is 1, expected 2"))
