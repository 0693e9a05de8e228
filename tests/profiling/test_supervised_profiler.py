"""Tests of profiling/supervised_profiler.py and measured_process.py: real processes that hang, crash and lie,
without a GPU.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import children, zombies
from units import alone

from genkern.errors import ProfilerError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import NOT_CHECKED, Candidate, Measurement, Outcome
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.timing.session import Budget, Session

HARNESS = (sys.executable, "-I", "-S", str(Path(__file__).with_name("fake_harness.py")))
TIMEOUT_S = 1.0
# What a fault may cost, the time that the config itself was given not counted.
RESTART_S = 5.0

FAULTS = {
    "hang": (Outcome.TIMED_OUT, "did not answer in 1 s"),
    "segfault": (Outcome.CRASHED, "killed by SIGSEGV"),
    "killed": (Outcome.CRASHED, "killed by SIGKILL"),
    "exits": (Outcome.CRASHED, "exit code 0"),
    "aborts": (Outcome.CRASHED, "killed by SIGABRT"),
    "fault": (Outcome.CRASHED, "exit code 1; Traceback | at line 3 | CUDA error: an illegal memory access"),
    "garbage": (Outcome.CRASHED, "<<< not JSON >>>"),
    "nonsense": (Outcome.CRASHED, "not an object"),
    "other": (Outcome.CRASHED, "answered for 'another'"),
    "negative": (Outcome.CRASHED, "not a list of times"),
}
# Those that are not about the answer to a request to screen.
LATER_FAULTS = [kind for kind in FAULTS if kind not in ("nonsense", "other", "negative")]


@pytest.fixture
def session(hostile_path: Path) -> Session:
    budget = Budget(timeout_s=TIMEOUT_S, min_rounds=2, final_rounds=4)
    return Session("", GemmProblem(64, 64, 64), "sm_90", 0, str(hostile_path), budget)


@pytest.fixture
def profiler(hostile_path: Path) -> Iterator[SupervisedProfiler]:
    before = set(zombies())
    profiler = SupervisedProfiler("cudagraph", 0, str(hostile_path), str(hostile_path), harness=HARNESS)
    yield profiler
    profiler.close()
    assert children("fake_harness") == {}
    assert set(zombies()) <= before


def candidate(family: str, block_m: int = 10) -> Candidate:
    return Candidate(Config(family, block_m, 16, 16), ())


def by_family(measurements: list[Measurement]) -> dict[str, Measurement]:
    return {m.config.partition("_BM")[0]: m for m in measurements}


def events(session: Session) -> list[tuple[int, str]]:
    lines = Path(session.work_dir, "log").read_text().splitlines()
    return [(int(pid), event) for pid, _, event in (line.partition(" ") for line in lines)]


def timed(action: Callable[[], list[Measurement]]) -> tuple[list[Measurement], float]:
    started = time.monotonic()
    return action(), time.monotonic() - started


def test_every_candidate_is_measured_in_order(session: Session, profiler: SupervisedProfiler) -> None:
    """One measurement each, in the order of the candidates, more of them than are asked for at a time."""
    wanted = [candidate("good", m) for m in range(1, 41)]
    measured = list(profiler.screen(session, alone(wanted)))
    assert [m.config for m in measured] == [c.config.name for c in wanted]
    assert [m.duration_us for m in measured] == [float(m) for m in range(1, 41)]
    assert {(m.outcome, m.stage, m.time_source) for m in measured} == {(Outcome.MEASURED, "screen", "cudagraph")}
    assert len({pid for pid, _ in events(session)}) == 1
    assert profiler.torch_version == "2.13"


def test_a_new_process_is_told_the_best_time(session: Session, profiler: SupervisedProfiler) -> None:
    """Of those before it, and of an earlier start of the run; the first of a run has heard of none."""
    wanted = [
        candidate("told", 1),
        candidate("good", 5),
        candidate("good", 3),
        candidate("killed"),
        candidate("told", 2),
    ]
    measured = [m.duration_us for m in profiler.screen(session, alone(wanted))]
    assert measured == [9.0, 5.0, 3.0, None, 3.0]
    # In another round of the same screening.
    again = [candidate("killed"), candidate("told", 6)]
    assert [m.duration_us for m in profiler.screen(session, alone(again))] == [None, 3.0]
    resumed = replace(session, best_us=0.25)
    assert [m.duration_us for m in profiler.screen(resumed, alone(iter([candidate("told", 1)])))] == [0.25]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_in_screening_costs_its_config_only(kind: str, session: Session, profiler: SupervisedProfiler) -> None:
    """The config has its outcome and what was said; those before and after it are measured; the restart is short."""
    wanted = [candidate("good", 1), candidate(kind), candidate("good", 2), candidate("good", 3)]
    measured, elapsed_s = timed(lambda: list(profiler.screen(session, alone(wanted))))
    assert [m.config for m in measured] == [c.config.name for c in wanted]
    outcome, said = FAULTS[kind]
    assert [m.outcome for m in measured] == [Outcome.MEASURED, outcome, Outcome.MEASURED, Outcome.MEASURED]
    assert said in measured[1].message
    assert "\n" not in measured[1].message
    assert elapsed_s < RESTART_S + (TIMEOUT_S if kind == "hang" else 0)


def test_refusals_and_slow_answers_cost_no_process(session: Session, profiler: SupervisedProfiler) -> None:
    """A launch that is refused is an outcome; an answer within the time limit counts however late it is."""
    wanted = alone(candidate(family) for family in ("refused", "slow", "good"))
    measured = by_family(list(profiler.screen(session, wanted)))
    assert measured["refused"].outcome is Outcome.LAUNCH_FAILED
    assert measured["refused"].message == "OutOfResources: shared memory"
    assert measured["slow"].outcome is measured["good"].outcome is Outcome.MEASURED
    assert len({pid for pid, _ in events(session)}) == 1


def test_many_faults_in_a_row_do_not_end_the_run(session: Session, profiler: SupervisedProfiler) -> None:
    """While the vendor library runs, the device is sound, however many configs in a row are not."""
    wanted = [candidate("killed", m) for m in range(1, 13)] + [candidate("good")]
    measured = list(profiler.screen(session, alone(wanted)))
    assert [m.outcome for m in measured] == [Outcome.CRASHED] * 12 + [Outcome.MEASURED]
    assert "retime 1 1 1" in [event for _, event in events(session)]


def test_a_reserve_stands_by(session: Session, profiler: SupervisedProfiler) -> None:
    """From the first session on: each replacement is a process that was started before it was needed."""
    for _ in range(2):
        assert next(profiler.screen(session, alone([candidate("good")]))).outcome is Outcome.MEASURED
        before = set(children("fake_harness"))
        assert len(before) == 2
        assert [m.outcome for m in profiler.screen(session, alone([candidate("killed"), candidate("good", 2)]))][
            -1
        ] is Outcome.MEASURED
        assert len(before & set(children("fake_harness"))) == 1
        assert len(children("fake_harness")) == 2


def test_a_death_between_candidates_is_nobodys_fault(session: Session, profiler: SupervisedProfiler) -> None:
    """A process that somebody kills while it waits is replaced, and the next candidate is measured."""
    first_is_measured = threading.Event()

    def candidates() -> Iterator[Candidate]:
        yield candidate("good", 1)
        assert first_is_measured.wait(10)
        pid = events(session)[0][0]
        os.kill(pid, signal.SIGKILL)
        while Path(f"/proc/{pid}").exists():
            threading.Event().wait(0.01)
        yield candidate("good", 2)

    screening = profiler.screen(session, alone(candidates()))
    assert next(screening).outcome is Outcome.MEASURED
    first_is_measured.set()
    assert [(m.outcome, m.duration_us) for m in screening] == [(Outcome.MEASURED, 2.0)]


def test_a_consumer_that_stops_early_stops_the_farm(session: Session, profiler: SupervisedProfiler) -> None:
    """When screening is given up, the candidates' generator is closed, so that what it holds is given back."""
    closed = threading.Event()

    def candidates() -> Iterator[Candidate]:
        try:
            for m in range(1, 10_000_000):
                yield candidate("good", m)
        finally:
            closed.set()

    screening = profiler.screen(session, alone(candidates()))
    next(screening)
    screening.close()  # type: ignore[attr-defined]
    assert closed.wait(10)


def test_the_farm_works_while_the_process_starts(
    session: Session, profiler: SupervisedProfiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Candidates are asked for before the measured process is open, whose start takes seconds."""
    asked = threading.Event()
    opened = profiler._process.open

    def patient(session: Session) -> None:
        assert asked.wait(10)
        opened(session)

    def farm() -> Iterator[Candidate]:
        asked.set()
        yield candidate("good")

    monkeypatch.setattr(profiler._process, "open", patient)
    assert [m.outcome for m in profiler.screen(session, alone(farm()))] == [Outcome.MEASURED]


def test_an_error_of_the_farm_is_raised(session: Session, profiler: SupervisedProfiler) -> None:
    """What the candidates' iterator raises reaches the caller, after the measurements that came before."""

    def candidates() -> Iterator[Candidate]:
        yield candidate("good", 1)
        raise OSError("disk full")

    screening = profiler.screen(session, alone(candidates()))
    assert next(screening).outcome is Outcome.MEASURED
    with pytest.raises(OSError, match="disk full"):
        next(screening)


@pytest.mark.parametrize("kind", LATER_FAULTS)
def test_semifinals_choose_the_fastest_or_the_first(kind: str, session: Session, profiler: SupervisedProfiler) -> None:
    """By what is measured then, without who loses the process; where many do, the first of the others go on."""
    wanted = [candidate("good", us) for us in (5, 3, 4)]
    assert profiler.semifinal(session, wanted, 2) == [wanted[1].config.name, wanted[2].config.name]
    wanted.insert(1, candidate(f"semifinal_{kind}", 2))
    assert profiler.semifinal(session, wanted, 2) == [wanted[2].config.name, wanted[3].config.name]
    bad = [candidate(f"semifinal_{kind}", us) for us in (6, 7, 8)]
    assert profiler.semifinal(session, [*bad, *wanted], 2) == [bad[2].config.name, wanted[0].config.name]


def test_finals_time_everyone_and_the_vendor_library(session: Session, profiler: SupervisedProfiler) -> None:
    """Samples, their median and the discarded ones of each finalist, and of the vendor library."""
    wanted = [candidate("good", 4), candidate("final_refused", 5), candidate("final_negative", 6)]
    finals = {m.config: m for m in profiler.retime(session, wanted)}
    good = finals[candidate("good", 4).config.name]
    assert good.samples_us == (4.0, 4.001, 4.002, 4.003)
    assert good.duration_us == pytest.approx(4.0015)
    assert (good.stage, good.discarded, good.outcome) == ("final", 2, Outcome.MEASURED)
    assert (good.usual_mhz, good.watts) == (1755.0, 688.25)
    assert finals["vendor"].duration_us == pytest.approx(9.0015)
    failed = finals[wanted[1].config.name], finals[wanted[2].config.name]
    assert [m.outcome for m in failed] == [Outcome.LAUNCH_FAILED] * 2
    assert failed[0].message == "OutOfResources: shared memory"
    assert "not a list of times" in failed[1].message


@pytest.mark.parametrize("kind", LATER_FAULTS)
def test_a_fault_in_the_finals_costs_its_config_only(kind: str, session: Session, profiler: SupervisedProfiler) -> None:
    """The culprit has its outcome; the others and the vendor library are timed together without it."""
    finalists = [candidate("good", 1), candidate(f"final_{kind}", 2), candidate("good", 3)]
    finals, elapsed_s = timed(lambda: profiler.retime(session, finalists))
    outcomes = {m.config: m.outcome for m in finals}
    culprit = finalists[1].config.name
    measured = [finalists[0].config.name, finalists[2].config.name, "vendor"]
    assert outcomes == {**dict.fromkeys(measured, Outcome.MEASURED), culprit: FAULTS[kind][0]}
    assert events(session)[-1][1] == "retime 3 2 4"
    # Among the others and alone: twice the config's own time, and two restarts.
    assert elapsed_s < 2 * (RESTART_S + (TIMEOUT_S if kind == "hang" else 0))


def test_a_finalist_that_was_only_there_is_not_lost(session: Session, profiler: SupervisedProfiler) -> None:
    """A process that somebody kills in the finals loses nobody: the suspect does not fail alone."""
    finals = profiler.retime(session, [candidate("once_final_killed", 1), candidate("good", 2)])
    assert {m.outcome for m in finals} == {Outcome.MEASURED}
    assert len(finals) == 3


def test_a_finalist_that_fails_only_among_others_is_dropped(session: Session, profiler: SupervisedProfiler) -> None:
    """Passing alone gives one more chance, not endless ones."""
    finals = by_family(profiler.retime(session, [candidate("crowd_final_killed", 1), candidate("good", 2)]))
    assert finals["crowd_final_killed"].outcome is Outcome.CRASHED
    assert finals["good"].outcome is finals["vendor"].outcome is Outcome.MEASURED


def test_a_vendor_library_that_crashes_is_left_out(session: Session, profiler: SupervisedProfiler) -> None:
    """The finalists are timed without it."""
    finals = profiler.retime(replace(session, init_type="badvendor"), [candidate("good", 1), candidate("good", 2)])
    assert [m.duration_us for m in finals] == pytest.approx([1.0015, 2.0015])


def test_the_librarys_algorithms_are_among_the_finals(session: Session, profiler: SupervisedProfiler) -> None:
    """By their names in results, beside PyTorch's own call; not where a budget leaves that library out."""
    session = replace(session, init_type="lt")
    algorithm = "cublaslt 131000 " + "5a" * 64
    assert {m.config for m in profiler.retime(session, [candidate("good", 1)])} >= {algorithm, "vendor"}
    check = profiler.check_call(session, algorithm)
    assert (check.config, check.passed, check.method) == (algorithm, True, "gpu")
    without = replace(session, budget=replace(session.budget, libraries="triton,torch"))
    finals = profiler.retime(without, [candidate("good", 1)])
    assert {m.config for m in finals} == {candidate("good", 1).config.name, "vendor"}


def test_an_algorithm_that_crashes_takes_its_library_along(session: Session, profiler: SupervisedProfiler) -> None:
    """The finalists and PyTorch's own call are timed without it."""
    finals = profiler.retime(replace(session, init_type="badlt"), [candidate("good", 1), candidate("good", 2)])
    assert [m.duration_us for m in finals] == pytest.approx([1.0015, 2.0015, 9.0015])
    assert {m.outcome for m in finals} == {Outcome.MEASURED}


def test_all_finalists_may_fail(session: Session, profiler: SupervisedProfiler) -> None:
    """Then each has its outcome, and the size is not lost to the run: the device still works."""
    finals = profiler.retime(session, [candidate("final_killed", m) for m in range(1, 5)])
    assert [m.outcome for m in finals] == [Outcome.CRASHED] * 4
    assert next(profiler.screen(session, alone([candidate("good")]))).outcome is Outcome.MEASURED


def test_a_check_has_the_processs_figures(session: Session, profiler: SupervisedProfiler) -> None:
    """A check is what the process found, with its figures; a refusal says why."""
    good = profiler.check(session, candidate("good"))
    assert (good.passed, good.method, good.rounds) == (True, "gpu", ("exact", "random"))
    assert (good.error_ratio, good.worst_row_error) == (0.01, 0.002)
    wrong = profiler.check(session, candidate("check_wrong"))
    assert (wrong.passed, wrong.message, wrong.lost) == (False, "C[0, 1] is 2, expected 3", None)
    senseless = profiler.check(session, candidate("check_senseless"))
    assert (senseless.passed, senseless.method) == (False, NOT_CHECKED)
    refused = profiler.check(session, candidate("check_refused"))
    assert (refused.passed, refused.message) == (False, "OutOfResources: shared memory")
    assert (refused.method, refused.lost) == ("gpu", None)
    unfit = profiler.check(session, candidate("check_unfit"))
    assert (unfit.passed, unfit.method, unfit.lost) == (False, NOT_CHECKED, Outcome.UNCHECKED)
    assert "memory to check it: OutOfMemoryError: CUDA out of memory" in unfit.message


@pytest.mark.parametrize("kind", ["segfault", "exits", "fault", "garbage", "killed"])
def test_a_fault_in_the_check_costs_its_config_only(kind: str, session: Session, profiler: SupervisedProfiler) -> None:
    """It is not known to be wrong, what was said is kept, and the next one has a process again."""
    check, elapsed_s = profiler.check, time.monotonic()
    failed = check(session, candidate(f"check_{kind}"))
    assert (failed.passed, failed.method, failed.lost) == (False, NOT_CHECKED, FAULTS[kind][0])
    assert FAULTS[kind][1] in failed.message
    assert check(session, candidate("good")).passed
    assert time.monotonic() - elapsed_s < 2 * RESTART_S


def test_a_check_that_was_interrupted_is_made_again(session: Session, profiler: SupervisedProfiler) -> None:
    """A process that somebody kills during a check does not make the config wrong."""
    assert profiler.check(session, candidate("once_check_killed")).passed


def test_a_device_that_does_not_open_is_reported(session: Session, profiler: SupervisedProfiler) -> None:
    """After a few attempts: which GPU, and what was said."""
    with pytest.raises(ProfilerError, match=r"GPU 0 .*illegal memory access") as caught:
        list(profiler.screen(replace(session, init_type="broken"), alone([candidate("good")])))
    assert "\n" not in str(caught.value)
    assert len(events(session)) == 3


def test_a_device_that_stays_broken_is_left_alone(session: Session, profiler: SupervisedProfiler) -> None:
    """When every call ends the process, the vendor library's too, the run on this device ends; nothing is left."""
    screening = profiler.screen(replace(session, init_type="lost"), alone([candidate("good", m) for m in range(1, 30)]))
    measured = []
    with pytest.raises(ProfilerError, match=r"GPU 0 .* 5 measured processes"):
        measured.extend(iter(lambda: next(screening), None))
    assert len(measured) < 6
    assert children("fake_harness") == {}


def test_a_problem_that_does_not_fit_is_no_fault_of_the_device(session: Session, profiler: SupervisedProfiler) -> None:
    """Its candidates are refused at every stage, each with the reason, and the next problem is measured."""
    refused = replace(session, init_type="refuse")
    screened = list(profiler.screen(refused, alone([candidate("good", 1), candidate("good", 2)])))
    assert [m.outcome for m in screened] == [Outcome.LAUNCH_FAILED] * 2
    assert "GPU 0 cannot hold 64x64x64: OutOfMemoryError" in screened[0].message
    assert [m.outcome for m in profiler.retime(refused, [candidate("good")])] == [Outcome.LAUNCH_FAILED]
    assert "out of memory" in profiler.check(refused, candidate("good")).message
    assert next(profiler.screen(session, alone([candidate("good")]))).outcome is Outcome.MEASURED


@pytest.mark.parametrize(("shown", "index", "seen"), [(None, 1, "1"), ("3,5", 1, "5"), ("GPU-abc", 0, "GPU-abc")])
def test_the_process_sees_its_one_device(
    shown: str | None, index: int, seen: str, session: Session, hostile_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Device numbers count within what the user lets this run see."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    profiler = SupervisedProfiler("cudagraph", index, str(hostile_path), str(hostile_path), harness=HARNESS)
    try:
        list(profiler.screen(session, alone([candidate("good")])))
        assert profiler.device == seen
    finally:
        profiler.close()


def test_a_confirmation_times_those_that_are_named(session: Session, profiler: SupervisedProfiler) -> None:
    """Configs, and the library's calls as the finals named them; a culprit costs what it costs in the finals."""
    algorithm = "cublaslt 131000 " + "5b" * 64
    wanted = [candidate("good", 4), candidate("good", 5)]
    found = profiler.confirm(session, wanted, [algorithm, "vendor"])
    assert [m.config for m in found] == [*(each.config.name for each in wanted), "vendor", algorithm]
    assert events(session)[-1][1] == "confirm 4 2 4"
    assert [m.config for m in profiler.confirm(session, wanted[:1], [])] == [wanted[0].config.name]
    bad = candidate("final_killed", 2)
    outcomes = {m.config: m.outcome for m in profiler.confirm(session, [wanted[0], bad], [algorithm])}
    assert outcomes == {
        wanted[0].config.name: Outcome.MEASURED,
        algorithm: Outcome.MEASURED,
        bad.config.name: Outcome.CRASHED,
    }
