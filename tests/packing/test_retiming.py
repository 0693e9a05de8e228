"""Tests of genkern.packing.retiming: who is faster here and now, by real processes on a GPU that is none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from proving import bundle_of, fake_server, named

from genkern.gemm.problem import GemmProblem
from genkern.packing.prover import Sessions
from genkern.packing.retiming import RetimedWinner, news, retime
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.result.result import Result
from genkern.timing.session import Budget

HERE = {"driver": "999.1", "cublaslt": "131000"}
KEPT = "cublaslt 130100 " + "5a" * 64


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SupervisedProfiler]:
    made = fake_server(tmp_path)
    yield made
    made.close()


def again(server: SupervisedProfiler, folder: Path, winner: Result) -> RetimedWinner:
    budget = Budget(min_rounds=10, final_rounds=20, timeout_s=5.0)
    return retime(0, winner, "b.genkern", server, Sessions("sm_90", 0, folder), HERE, budget)


def winner_of(config: str, **changes: object) -> Result:
    return replace(bundle_of(config).winners[0], **changes)  # type: ignore[arg-type]


def events(folder: Path) -> list[str]:
    """What the process was asked, and how many raced."""
    lines = [line.split()[1:3] for line in (folder / "log").read_text().splitlines()]
    return [" ".join(line) for line in lines]


def test_a_winner_stays_with_the_times_of_here(server: SupervisedProfiler, tmp_path: Path) -> None:
    """And says what measured them; no second race, where the first shows it faster than the library's best."""
    found = again(server, tmp_path, winner_of(named("good"), choice="config"))
    now = found.now
    assert now is not None
    assert (now.choice, now.vendor, found.why) == ("config", "torch", "")
    assert now.duration_us == pytest.approx(8.0, rel=0.01)
    assert (now.vendor_us, now.torch_us) == pytest.approx((9.0, 9.0), rel=0.01)
    assert dict(now.versions).items() >= HERE.items()
    assert now.calls == found.before.calls
    assert events(tmp_path) == ["open", "retime 2"]


def test_what_was_predicted_is_measured(server: SupervisedProfiler, tmp_path: Path) -> None:
    """It is called from then on for what it took here, and what a model said of it is nobody's time before."""
    predicted = {"choice": "config", "time_source": "predicted", "check": None, "duration_us": 3.0, "vendor_us": None}
    found = again(server, tmp_path, winner_of(named("good"), **predicted))
    assert found.now is not None
    assert not found.now.is_predicted
    assert found.now.duration_us == pytest.approx(8.0, rel=0.01)
    _, line = news([found])
    assert "3.00" not in line
    assert line.endswith("its kernel")


def test_what_lost_is_the_librarys(server: SupervisedProfiler, tmp_path: Path) -> None:
    """By rounds that chose neither; its kernels stay for other M only where they beat PyTorch's call."""
    found = again(server, tmp_path, winner_of(named("good", 20)))
    assert found.now is not None
    assert (found.is_switched, found.now.choice, found.now.calls) == (True, "vendor", ())
    assert found.why == "the library is faster"
    assert events(tmp_path) == ["open", "retime 2", "confirm 2"]
    table = news([found])
    assert len(table) == 2
    assert table[1].split()[:5] == ["128x128x256", named("good", 20), "10.00", "20.01", "12.00"]
    assert table[1].endswith("the library: the library is faster")


def test_a_tie_is_no_loss(server: SupervisedProfiler, tmp_path: Path) -> None:
    """It was called, and goes on to be."""
    found = again(server, tmp_path, winner_of(named("good", 9)))
    assert found.now is not None
    assert (found.is_switched, found.now.choice) == (False, "config")


def test_a_kernel_that_ends_the_process(server: SupervisedProfiler, tmp_path: Path) -> None:
    """Is the library's from then on; one that nobody can time and no library was measured beside is nobody's."""
    winner = winner_of(named("final_segfault"))
    found = again(server, tmp_path, winner)
    assert found.now is None or found.now.calls == ()
    assert found.is_switched
    assert "SIGSEGV" in found.why
    assert again(server, tmp_path, replace(winner, vendor_us=None)).is_switched


def test_an_algorithm_of_another_version(server: SupervisedProfiler, tmp_path: Path) -> None:
    """Is raced anew, also where no kernel is there to race with it."""
    winner = winner_of(named("good"), choice="vendor", vendor=KEPT)
    found = again(server, tmp_path, winner.with_calls(()))
    assert found.now is not None
    assert (found.now.choice, found.now.vendor, found.now.duration_us) == ("vendor", "torch", 10.0)
    assert not found.is_switched
    with_kernel = again(server, tmp_path, winner)
    assert with_kernel.now is not None
    # Faster than PyTorch's call, it goes on to serve other M.
    assert with_kernel.now.calls == winner.calls
    assert with_kernel.now.duration_us == pytest.approx(8.0, rel=0.01)


def test_another_server_or_speed_is_news() -> None:
    """Another server, or another speed over the library's by more than 5 %."""
    winner = winner_of(named("good"), problem=GemmProblem(128, 128, 256, row_major_a=False))
    same = RetimedWinner(winner, replace(winner, duration_us=20.0, vendor_us=24.5))
    slower = RetimedWinner(winner, replace(winner, duration_us=11.0))
    gone = RetimedWinner(winner, None, "it could not be timed")
    assert [each.is_news for each in (same, slower, gone)] == [False, True, True]
    table = news([same, slower, gone])
    assert [line.split()[0] for line in table] == ["size", "128x128x256", "128x128x256"]
    assert "128x128x256 NN" in table[1]
    assert news([same]) == []
