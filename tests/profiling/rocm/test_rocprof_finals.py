"""Tests of the finals of profiling/rocm/rocprof.py, the vendor library among them, against fake profilers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_rocprof
import pytest
from rocprof_session import (
    CANDIDATES,
    NAMES,
    by_name,
    expected_us,
    plain_session,
)
from trace_formats import ROCPROF, ROCPROFV3

from genkern.gemm.records import Outcome
from genkern.profiling.launch_job import final_visits
from genkern.profiling.rocm.rocprof import RocprofProfiler, RocprofV3Profiler
from genkern.search.select import faster_choice, ranking
from genkern.timing.libraries import VENDOR, StoredAlgorithm
from genkern.timing.session import Session

pytestmark = pytest.mark.usefixtures("profilers")


def test_retime_keeps_the_last_call_of_each_round(session: Session, profiler: RocprofV3Profiler) -> None:
    """One sample a round and finalist, in the order of the finalists, labelled final."""
    found = profiler.retime(session, CANDIDATES)
    assert [m.config for m in found] == [*NAMES, VENDOR]
    for measurement, candidate in zip(found[:-1], CANDIDATES, strict=True):
        assert measurement.samples_us == expected_us(candidate, range(1, 2)) * 5
        assert (measurement.outcome, measurement.stage) == (Outcome.MEASURED, "final")
    assert profiler.retime(session, []) == []


def test_throttled_rounds_are_discarded_and_counted(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """One low reading takes the rounds before and after it away from everyone; the usual clock is said."""
    script(clock_mhz=[2100, 2080, 2090, 1400, 2085, 2095])
    found = by_name(profiler.retime(session, CANDIDATES))
    assert session.budget.final_rounds == 5
    for measurement in found.values():
        assert (len(measurement.samples_us), measurement.discarded, measurement.usual_mhz) == (3, 2, 2087.5)
    assert found[VENDOR].samples_us == pytest.approx((_LIBRARY_US,) * 3)


@pytest.mark.parametrize(
    ("clock_mhz", "usual"), [([2100, 1000, 2100, 1000, 2100, 1000], 1550.0), ([2000] * 6, 2000.0), (None, None)]
)
def test_without_a_usual_clock_no_sample_is_discarded(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], clock_mhz: object, usual: float | None
) -> None:
    """A clock that is low half of the time, one that stays, and none: all samples are kept."""
    script(clock_mhz=clock_mhz)
    for measurement in profiler.retime(session, CANDIDATES):
        assert (len(measurement.samples_us), measurement.discarded, measurement.usual_mhz) == (5, 0, usual)


def test_one_that_was_seen_in_throttled_rounds_only_keeps_its_samples(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A time at a low clock is better than none: it is not called not seen."""
    budget = replace(session.budget, final_rounds=3)
    script(clock_mhz=[1000, 2100, 2100, 2100], errors={}, deaths={}, loses_after={NAMES[0]: 1})
    found = by_name(profiler.retime(replace(session, budget=budget), CANDIDATES))
    assert (len(found[NAMES[0]].samples_us), found[NAMES[0]].discarded) == (1, 0)
    assert (len(found[NAMES[2]].samples_us), found[NAMES[2]].discarded) == (2, 1)


def test_the_librarys_algorithms_race_as_the_process_names_them(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Those that it found best, between fences; a confirmation has the one that is named, and PyTorch's own call."""
    first, second = (StoredAlgorithm(100202, bytes([i]) + bytes(23), "hipblaslt").name for i in (7, 9))
    script(lt={first: 25_000})
    found = {m.config: m for m in profiler.retime(session, CANDIDATES)}
    assert [*found] == [*NAMES, VENDOR, first]
    assert found[first].samples_us == pytest.approx((25.0,) * 5)
    assert found[VENDOR].samples_us == pytest.approx((_LIBRARY_US,) * 5)
    script(lt={first: 25_000, second: 26_000})
    assert [m.config for m in profiler.retime(session, CANDIDATES)] == [*NAMES, VENDOR, first, second]
    script(lt={first: 25_000, "aiter ck": 24_000})
    assert [m.config for m in profiler.retime(session, CANDIDATES)] == [*NAMES, VENDOR, first, "aiter ck"]
    script(lt={first: 25_000, second: 26_000})
    found = {m.config: m for m in profiler.confirm(session, CANDIDATES[:1], [second])}
    assert [*found] == [NAMES[0], VENDOR, second]
    assert found[second].samples_us == pytest.approx((26.0,) * 5)
    script(lt={first: 25_000}, deaths={"hipblaslt 0": "SIGSEGV"})
    found = {m.config: m for m in profiler.retime(session, CANDIDATES)}
    assert [*found] == [*NAMES, VENDOR]
    assert all(len(found[name].samples_us) == 5 for name in found)


def test_a_library_that_may_not_win_has_no_places(session: Session, profiler: RocprofV3Profiler) -> None:
    """With --libtype torch,triton there is no screening."""
    budget = replace(session.budget, libraries="triton,torch")
    found = profiler.retime(replace(session, budget=budget), CANDIDATES)
    assert [m.config for m in found] == [*NAMES, VENDOR]


def test_retime_goes_on_without_a_finalist_that_fails(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A crash, a hang and an error cost one finalist each; the others are compared in full."""
    script(deaths={NAMES[1]: "SIGSEGV"}, hangs=[NAMES[2]], errors={NAMES[3]: "no"})
    found = by_name(profiler.retime(session, CANDIDATES))
    outcomes = [found[name].outcome for name in NAMES[1:4]]
    assert outcomes == [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_FAILED]
    for name in NAMES[:1] + NAMES[4:]:
        assert len(found[name].samples_us) == session.budget.final_rounds


def test_retime_reports_a_finalist_that_the_trace_never_has(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Lost in every round, it is not seen; nobody gets its times."""
    script(lost={NAMES[7]: 1})
    found = by_name(profiler.retime(session, CANDIDATES))
    assert found[NAMES[7]].outcome is Outcome.NOT_SEEN
    for candidate in CANDIDATES[:6]:
        assert found[candidate.config.name].samples_us == expected_us(candidate, range(1, 2)) * 5
    shares_the_symbol = found[NAMES[6]].samples_us
    assert set(shares_the_symbol) <= set(expected_us(CANDIDATES[6], range(1, 2)))


def test_retime_ends_when_every_process_dies_at_its_end(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A runtime that aborts in its own clean-up each time, and a finalist that no trace has: the others count."""
    script(lost={NAMES[7]: 1}, at_exit="SIGABRT")
    found = by_name(profiler.retime(session, CANDIDATES))
    assert found[NAMES[7]].outcome is Outcome.NOT_SEEN
    for candidate in CANDIDATES[:6]:
        assert found[candidate.config.name].samples_us == expected_us(candidate, range(1, 2)) * 5


_LIBRARY_US = sum(fake_rocprof.VENDOR_KERNELS.values()) / 1000


@pytest.mark.parametrize("version", [*ROCPROFV3, "db"])
def test_retime_times_the_vendor_library_whatever_the_version_writes(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], version: str
) -> None:
    """One sample a round, the sum of the call's kernels; nothing of its first call, nor of what PyTorch set up."""
    script(version=version)
    *configs, vendor = profiler.retime(session, CANDIDATES)
    assert (vendor.config, vendor.outcome, vendor.stage) == (VENDOR, Outcome.MEASURED, "final")
    assert vendor.samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)
    assert vendor.duration_us == vendor.samples_us[0]
    assert "10 of 10 calls" in vendor.message
    assert "Cijk_Ailk_Bljk" in vendor.message
    for measurement, candidate in zip(configs, CANDIDATES, strict=True):
        assert measurement.samples_us == expected_us(candidate, range(1, 2)) * 5
    assert os.listdir(session.work_dir) == []


@pytest.mark.parametrize("version", ROCPROF)
def test_legacy_rocprof_times_the_vendor_library_too(
    session: Session, tmp_path: Path, script: Callable[..., None], version: str
) -> None:
    """Also where no column numbers the launches."""
    script(version=version)
    profiler = RocprofProfiler(harness=(sys.executable, str(tmp_path / "harness.py")))
    vendor = profiler.retime(plain_session(session, tmp_path), CANDIDATES)[-1]
    assert (vendor.config, vendor.time_source) == (VENDOR, "rocprof")
    assert vendor.samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ({"errors": {VENDOR: "RuntimeError: _int_mm is not\n supported"}}, Outcome.LAUNCH_FAILED, "not supported"),
        ({"deaths": {VENDOR: "SIGSEGV"}}, Outcome.CRASHED, "SIGSEGV: Memory access fault by vendor"),
        ({"hangs": [VENDOR]}, Outcome.TIMED_OUT, "SIGTERM"),
        ({"lost": {VENDOR: 1}}, Outcome.NOT_SEEN, "the vendor library is not timed: the trace has only"),
        ({"vendor": {}}, Outcome.NOT_SEEN, "the vendor library is not timed: the trace has no kernel of"),
    ],
)
def test_a_vendor_library_that_fails_costs_no_finalist_anything(
    session: Session,
    profiler: RocprofV3Profiler,
    script: Callable[..., None],
    fault: dict[str, Any],
    outcome: Outcome,
    said: str,
) -> None:
    """It has no time and says why; every finalist has all its rounds."""
    script(**fault)
    found = by_name(profiler.retime(session, CANDIDATES))
    assert found[VENDOR].outcome is outcome
    assert (found[VENDOR].duration_us, found[VENDOR].samples_us) == (None, ())
    assert said in found[VENDOR].message
    for candidate in CANDIDATES:
        assert found[candidate.config.name].samples_us == expected_us(candidate, range(1, 2)) * 5


@pytest.mark.parametrize(("slower_ns", "chosen"), [(-900, "vendor"), (0, "tie"), (3000, "config")])
def test_the_choice_follows_from_the_librarys_time(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], slower_ns: int, chosen: str
) -> None:
    """By the rule that holds for every profiler: whoever is the faster one, or nobody."""
    fastest_us = min(expected_us(candidate, range(1, 2))[0] for candidate in CANDIDATES)
    script(vendor={"fill": 500, "Cijk_Ailk": round(fastest_us * 1000) - 500 + slower_ns})
    *configs, vendor = profiler.retime(session, CANDIDATES)
    winner = ranking(configs, vendor)[0]
    assert winner.duration_us == fastest_us
    assert faster_choice(winner, vendor) == chosen
    assert vendor.duration_us == pytest.approx(fastest_us + slower_ns / 1000)


def test_a_process_that_never_reaches_the_vendor_library_says_so(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """With one round the process is over before its turn, three times; whoever has a time keeps it."""
    script(ends_before=VENDOR, trace="partial")
    session = replace(session, budget=replace(session.budget, final_rounds=1), seed=2)
    found = by_name(profiler.retime(session, CANDIDATES))
    assert found[VENDOR].outcome is Outcome.NOT_SEEN
    assert "none of its turns was reached" in found[VENDOR].message


def test_a_finalist_that_ends_the_process_leaves_the_vendor_library_in_the_race(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """It is timed in the rounds of those that are left, so that their times compare."""
    script(deaths={NAMES[1]: "SIGSEGV"})
    found = by_name(profiler.retime(session, CANDIDATES))
    assert found[NAMES[1]].outcome is Outcome.CRASHED
    assert found[VENDOR].samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)


def test_without_a_finalist_that_runs_there_is_no_vendor_library(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Nothing is left to compare it with, so nothing is launched for it alone."""
    script(deaths=dict.fromkeys(NAMES[:2], "SIGSEGV"))
    found = profiler.retime(session, CANDIDATES[:2])
    assert [m.config for m in found] == NAMES[:2]


def test_rounds_are_shuffled_and_reproducible(session: Session) -> None:
    """Every round has every finalist once; orders differ between rounds and repeat with the seed."""
    visits = final_visits(session, CANDIDATES)
    rounds = [[v.name for v in visits[i : i + 8]] for i in range(0, len(visits), 8)]
    assert len(rounds) == session.budget.final_rounds
    assert all(sorted(one) == sorted(NAMES) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert visits == final_visits(session, CANDIDATES)
