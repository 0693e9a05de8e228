"""Tests of genkern.packing.prover: real processes that hang, crash and find kernels wrong, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from computing_gpu import CONFIG, planned, planned_row
from proving import H200, bundle_of, fake_server, named

from genkern.errors import BugError, ProfilerError
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Check, Outcome
from genkern.kernels.catalogue import sums_of
from genkern.packing.prover import (
    PROOF_TIMEOUT_S,
    PackedCandidate,
    Proofs,
    Prover,
    Sessions,
    devices_for,
    proofs_text,
)
from genkern.runtime.bundles.bundle import Bundle
from genkern.timing.session import Session

GIVEN_S = PROOF_TIMEOUT_S + 60


@dataclass
class Answers:
    """Checks that answer as `of` says for M, and write down for which M they were asked."""

    of: Callable[[int], Check]
    asked: list[int] = field(default_factory=list)

    def check_request(self, session: Session, name: str, request: dict[str, Any]) -> Check:
        assert Path(session.module_path).exists()
        assert session.budget.rotating_mb == 0
        self.asked.append(session.problem.M)
        return self.of(session.problem.M)


RIGHT = Check("c", True, 0.0, 0.0, "size", "gpu")


def proved(bundle: Bundle, checks: Any, folder: Path, **more: Any) -> tuple[Proofs, list[str]]:
    said: list[str] = []
    prover = Prover(checks, Sessions("sm_90", 0, folder), bundle, "b.genkern", H200.name, said.append, **more)
    return prover.prove(), said


def test_kernels_that_end_their_process_cost_themselves(tmp_path: Path) -> None:
    """Each is left out with what it did; those beside it are proved."""
    families = "good", "check_segfault", "check_wrong", "check_hang", "good"
    bundle = bundle_of(*map(named, families))
    checks = fake_server(tmp_path)
    # A reference takes its time: a kernel that hangs is given up later than is good for a test.
    receive = checks._process.receive
    checks._process.receive = lambda s: receive(min(s, 1.0) if s == GIVEN_S else s)  # type: ignore[method-assign]
    try:
        proofs, said = proved(bundle, checks, tmp_path)
    finally:
        checks.close()
    assert [winner.choice for winner in proofs.contents.winners] == ["config", "vendor", "vendor", "vendor", "config"]
    assert [call.proved for winner in proofs.contents.winners for call in winner.calls] == [(128,), (128,)]
    assert (proofs.wrong, proofs.status, proofs.ended) == (3, 1, "")
    for line, what in zip(said, ("SIGSEGV", "C[0, 1] is 2, expected 3", "did not answer"), strict=True):
        assert line.startswith("left out: 128x")
        assert " for M from 128 to 128: at M = 128: " in line
        assert what in line


def test_every_call_at_every_size(tmp_path: Path) -> None:
    """The masked one too; what is proved is asked again where that is wanted only, other devices' never."""
    bundle, _ = planned([planned_row(GemmProblem(128, 128, 256))])
    checks = Answers(lambda m: RIGHT)
    proofs, said = proved(bundle, checks, tmp_path)
    assert proofs.contents.proofs == (2, 2)
    assert (said, proofs.status) == ([], 0)
    assert checks.asked[:2] == [128, 1]
    assert len(checks.asked) == 6
    again = replace(bundle, contents=proofs.contents)
    for more, count in (({}, 6), ({"again": True}, 12)):
        assert proved(again, checks, tmp_path, **more)[0].contents == proofs.contents
        assert len(checks.asked) == count
    elsewhere = replace(bundle.contents, winners=(replace(bundle.winners[0], device="NVIDIA H100"),))
    assert proved(replace(bundle, contents=elsewhere), checks, tmp_path)[0].contents == elsewhere
    assert len(checks.asked) == 12


@dataclass
class Lanes:
    """Further processes, whose checks answer as `of` says for M."""

    of: Callable[[int], Check]
    started: list[Answers] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def __call__(self, number: int) -> Any:
        made = Answers(self.of)
        made.close = lambda: self.closed.append(number)  # type: ignore[attr-defined]
        self.started.append(made)
        return made


@pytest.fixture
def many() -> Bundle:
    """A bundle of ten sizes, with several checks each."""
    return planned([planned_row(GemmProblem(128, 128 * n, 256)) for n in range(1, 11)])[0]


def test_several_processes_make_each_check_once(many: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    alone, checks, lanes = Answers(lambda m: RIGHT), Answers(lambda m: RIGHT), Lanes(lambda m: RIGHT)
    wanted, _ = proved(many, alone, tmp_path)
    proofs, said = proved(many, checks, tmp_path, more_checks=lanes)
    assert (proofs, said) == (wanted, [])
    assert len(lanes.started) == 2
    assert sorted(lanes.closed) == [1, 2]
    assert sorted(each for lane in (checks, *lanes.started) for each in lane.asked) == sorted(alone.asked)


def test_a_wrong_call_and_a_want_of_memory_are_the_same_in_several_processes(
    many: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room, the first process makes the check again when it is alone."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    refused = Check("c", False, 1.0, 1.0, "size", NOT_CHECKED, "cannot hold it", Outcome.LAUNCH_FAILED)
    wrong = replace(RIGHT, passed=False, message="C[0, 0] is 1, expected 2")

    def of(m: int) -> Check:
        return wrong if m == 128 else RIGHT

    wanted, lines = proved(many, Answers(of), tmp_path)
    proofs, said = proved(many, Answers(of), tmp_path, more_checks=Lanes(lambda m: refused if m > 1000 else of(m)))
    assert proofs.wrong == 20
    assert (proofs, said) == (wanted, lines)


def test_a_device_that_breaks_ends_the_checks_of_all_processes(
    many: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)

    def broken(m: int) -> Check:
        raise ProfilerError("GPU 0 is broken")

    checks, lanes = Answers(broken), Lanes(broken)
    proofs, _ = proved(many, checks, tmp_path, more_checks=lanes)
    assert (proofs.ended, proofs.contents) == ("GPU 0 is broken", many.contents)
    assert max(len(lane.asked) for lane in (checks, *lanes.started)) == 1


@pytest.mark.parametrize("limit", [1, 2000, 2**23 - 2])
def test_a_size_that_does_not_fit(tmp_path: Path, limit: int) -> None:
    """Is no fault: the call is proved up to what fits, and goes on to serve the rest."""
    refused = Check("c", False, 1.0, 1.0, "size", NOT_CHECKED, "cannot hold it", Outcome.LAUNCH_FAILED)
    bundle, _ = planned([planned_row(GemmProblem(128, 128, 256))])
    masked = bundle.winners[0].with_calls(bundle.winners[0].calls[1:])
    bundle = replace(bundle, contents=replace(bundle.contents, winners=(masked,)))
    proofs, said = proved(bundle, Answers(lambda m: RIGHT if m <= limit else refused), tmp_path)
    (call,) = proofs.contents.winners[0].calls
    assert call.most_m == 2**23 - 1
    assert not call.is_proved
    assert limit // 2 < call.proved[-1] <= limit
    (line,) = said
    assert line.endswith("its operands do not fit here")
    assert proofs.status == 0


def test_no_kernels_fault(tmp_path: Path) -> None:
    """A bug of genkern's leaves a call without a proof and goes on; a device that is broken ends it all."""
    bundle = bundle_of("one", "two")

    def of(error: Exception) -> Callable[[int], Check]:
        def answer(m: int) -> Check:
            raise error

        return answer

    proofs, said = proved(bundle, Answers(of(BugError("KeyError: 'x'", "details"))), tmp_path)
    assert (proofs.bugs, proofs.status, proofs.contents) == (2, 3, bundle.contents)
    sizes = [line.partition(" for M")[0] for line in said]
    assert sizes == ["not proved: 128x128x256 one", "not proved: 128x192x256 two"]
    proofs, said = proved(bundle, Answers(of(ProfilerError("GPU 0 is broken"))), tmp_path)
    assert (proofs.ended, proofs.status, proofs.contents, said) == ("GPU 0 is broken", 0, bundle.contents, [])


@dataclass
class RowBits:
    """Comparisons that find the bits that `of` says for a call and M, or what is wrong."""

    of: Callable[[str, int, int], str]
    asked: list[int] = field(default_factory=list)

    def check(self, session: Session, name: str, candidate: PackedCandidate, reference: object) -> Check:
        m = session.problem.M
        assert candidate.request["packed"]["call"] == candidate.place[1]
        self.asked.append(m)
        bits = self.of(name, candidate.place[1], m)
        return replace(RIGHT, passed=not bits.startswith("a row"), message=bits, row_bits=bits)


def one_order(*sizes: int) -> Bundle:
    """Batch invariant winners of one layer, and one that is not."""
    problem = GemmProblem(1, 128, 256)
    sums = sums_of(problem, CONFIG, "sm_90")
    rows = [planned_row(replace(problem, M=m), sums=sums, batch_invariant=True) for m in sizes]
    return planned([*rows, planned_row(GemmProblem(96, 192, 256))])[0]


def rows_of_pool(m: int) -> str:
    """Two digits for each of up to 32 rows."""
    return "".join(f"{row:02}" for row in range(min(m, 32)))


def test_rows_of_a_layer_are_compared_to_the_bit(tmp_path: Path) -> None:
    """Of every call of batch invariant winners, for each M that is proved and not too large."""
    bundle, bits = one_order(16, 128), RowBits(lambda name, call, m: rows_of_pool(m))
    checks = Answers(lambda m: RIGHT)
    proofs, said = proved(bundle, checks, tmp_path, rows=bits)
    assert all(call.is_proved for winner in proofs.contents.winners for call in winner.calls)
    assert {1, 16, 128} <= set(bits.asked)
    assert max(checks.asked) > 2**21 > 2**28 / 256 >= max(bits.asked)
    assert len(said) == 1
    assert said[0].startswith(f"rows compared to the bit: 1 layers, {len(bits.asked)} calls")


@pytest.mark.parametrize("how", ["moved", "other"])
def test_a_call_with_rows_of_other_bits_is_left_out(tmp_path: Path, how: str) -> None:
    """Of itself in another batch, or of the layer's other calls: what most have is right, whoever comes first."""

    def of(name: str, call: int, m: int) -> str:
        if call != 1:
            return rows_of_pool(m)
        return "a row has other bits elsewhere" if how == "moved" else rows_of_pool(m).replace("00", "77")

    bundle = one_order(16, 128)
    faulty = next(winner for winner in bundle.winners if len(winner.calls) > 1 and winner.batch_invariant)
    proofs, said = proved(bundle, Answers(lambda m: RIGHT), tmp_path, rows=RowBits(of))
    left = next(winner for winner in proofs.contents.winners if winner.problem == faulty.problem)
    assert len(left.calls) == len(faulty.calls) - 1
    assert left.batch_invariant
    assert proofs.status == 1
    assert any(line.startswith("left out: ") and "other bits" in line for line in said)


def test_which_gpus_prove() -> None:
    """The first of each kind that the bundle is for."""
    contents = bundle_of("one").contents
    detected = [replace(H200, name="NVIDIA L4"), replace(H200, index=1), replace(H200, index=2)]
    assert devices_for(contents, detected) == [detected[1]]
    assert devices_for(contents, detected[:1]) == devices_for(contents, []) == []


def test_how_many_is_said() -> None:
    """With the seconds where they were proved here; else who proves the others."""
    contents = bundle_of("one").contents
    assert proofs_text(contents, 1.25) == "proved: 0 of 1 calls and kernels, in 1.2 s"
    assert "`genkern verify`" in proofs_text(contents, None)
    call = replace(contents.winners[0].calls[0], proved=(128,))
    whole = replace(contents, winners=(contents.winners[0].with_calls((call,)),))
    assert proofs_text(whole, None) == "proved: all 1 calls and kernels"
