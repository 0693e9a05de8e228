"""Tests of genkern/tuning/confirmation.py: what rounds that chose nobody say, or an earlier start of a run knew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.journal.journal import Journal
from genkern.timing.libraries import VENDOR, StoredAlgorithm
from genkern.timing.session import Budget, Session
from genkern.tuning.confirmation import ConfirmationRound, confirm

PROBLEM = GemmProblem(64, 4096, 4096)
PLAIN = Config("tiled", 64, 64, 32)
DEEP = replace(PLAIN, num_stages=5)
ALGORITHM = StoredAlgorithm(131000, bytes(64)).name


def measured(name: str, us: float) -> Measurement:
    return Measurement(name, Outcome.MEASURED, "cudagraph", "final", us, (us,) * 5)


CHOSEN = ConfirmationRound(
    measured(PLAIN.name, 100), measured(DEEP.name, 101), measured(VENDOR, 110), measured(VENDOR, 110)
)


class Again:
    """A profiler to which everything takes 5 us more."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[str], list[str]]] = []

    def confirm(self, session: Session, finalists: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        names = [candidate.config.name for candidate in finalists]
        self.asked.append((names, list(calls)))
        us = {ALGORITHM: 108.0, **{m.config: m.duration_us or 0.0 for m in CHOSEN}}
        return [measured(name, us[name] + 5) for name in (*names, *calls)]


def times(compared: ConfirmationRound) -> list[float | None]:
    found = compared.winner, compared.runner_up, compared.vendor, compared.torch, compared.incumbent
    return [None if m is None else m.duration_us for m in found]


@pytest.fixture
def job(tmp_path: Path) -> ProblemBuild:
    session = Session("m.py", PROBLEM, "sm_90", 0, str(tmp_path), Budget())
    return ProblemBuild(session, {config.name: Candidate(config, ()) for config in (PLAIN, DEEP)})


def test_a_run_that_goes_on_times_nobody_twice(job: ProblemBuild, tmp_path: Path) -> None:
    """One that is two of these is timed once. Another library's call, as after another check, means new rounds."""
    profiler: Any = Again()
    other = replace(CHOSEN, vendor=measured(ALGORITHM, 108))
    for chosen in (CHOSEN, CHOSEN, ConfirmationRound(measured(DEEP.name, 101)), other, other):
        journal = Journal(tmp_path / "journal", {})
        again = confirm(profiler, journal, job, journal.of(PROBLEM), chosen)
        journal.close()
        assert times(again) == [None if us is None else us + 5 for us in times(chosen)]
    both = [PLAIN.name, DEEP.name]
    assert profiler.asked == [(both, [VENDOR]), (both, [ALGORITHM, VENDOR])]


def test_a_winner_whose_binaries_are_lost_keeps_its_times(job: ProblemBuild, tmp_path: Path) -> None:
    """An earlier start timed and checked it; its rivals' times would be of other rounds."""
    del job.ready[PLAIN.name]
    journal = Journal(tmp_path / "journal", {})
    profiler: Any = Again()
    assert confirm(profiler, journal, job, journal.of(PROBLEM), CHOSEN) == CHOSEN
    assert profiler.asked == []
    # Without a runner-up's the others are timed.
    job.ready = {PLAIN.name: Candidate(PLAIN, ())}
    again = confirm(profiler, journal, job, journal.of(PROBLEM), CHOSEN)
    assert times(again) == [105, None, 115, 115, None]
    journal.close()


def test_what_has_no_time_stays_as_it_is(job: ProblemBuild, tmp_path: Path) -> None:
    """A library that no trace shows for certain says why, and nobody asks for it again."""
    unseen = Measurement(VENDOR, Outcome.NOT_SEEN, "rocprofv3", "final", message="its calls differ")
    journal = Journal(tmp_path / "journal", {})
    profiler: Any = Again()
    again = confirm(profiler, journal, job, journal.of(PROBLEM), replace(CHOSEN, vendor=unseen, torch=unseen))
    journal.close()
    assert (again.vendor, again.torch, again.is_measured) == (unseen, unseen, True)
    assert profiler.asked == [([PLAIN.name, DEEP.name], [])]
