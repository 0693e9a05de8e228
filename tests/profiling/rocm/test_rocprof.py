"""Tests of profiling/rocm/rocprof.py and launch_job.py against fake profilers: real processes, no device."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rocprof_session import (
    CANDIDATES,
    NAMES,
    by_name,
    expected_us,
    make_candidate,
    plain_session,
)
from trace_formats import ROCPROF, ROCPROFV3
from units import alone

from genkern.errors import ProfilerError
from genkern.gemm.records import Candidate, Measurement, Outcome
from genkern.profiling.launch_job import LaunchLogWatch, screen_calls, spread_symbols
from genkern.profiling.rocm.rocprof import RocprofProfiler, RocprofV3Profiler
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget, Session

pytestmark = pytest.mark.usefixtures("profilers")


def _assert_measured(found: dict[str, Measurement], but: tuple[str, ...] = ()) -> None:
    """Every config except `but` has exactly its own times."""
    for candidate in CANDIDATES:
        name = candidate.config.name
        if name not in but:
            assert found[name].outcome is Outcome.MEASURED, found[name]
            assert found[name].samples_us == expected_us(candidate, range(1, 4))
            assert found[name].duration_us == statistics.median(found[name].samples_us)


@pytest.mark.parametrize("version", [*ROCPROFV3, "db"])
def test_screen_measures_every_candidate_whatever_the_version_writes(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], version: str
) -> None:
    """Each candidate has its own times, warm-up dropped, kernels of a call added, folders cleaned up."""
    script(version=version)
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    _assert_measured(found)
    assert {(m.time_source, m.stage) for m in found.values()} == {("rocprofv3", "screen")}
    assert os.listdir(session.work_dir) == []


@pytest.mark.parametrize("version", ROCPROF)
def test_legacy_rocprof_measures_the_same(
    session: Session, tmp_path: Path, script: Callable[..., None], version: str
) -> None:
    """rocprof's files give the same times under its own label."""
    script(version=version)
    profiler = RocprofProfiler(harness=(sys.executable, str(tmp_path / "harness.py")))
    found = by_name(profiler.screen(plain_session(session, tmp_path), alone(CANDIDATES)))
    _assert_measured(found)
    assert {m.time_source for m in found.values()} == {"rocprof"}


def test_legacy_rocprof_hides_a_death_but_the_log_shows_it(
    session: Session, tmp_path: Path, script: Callable[..., None]
) -> None:
    """Exit code 0 and a missing end line still make the config a crash, with the program's last words."""
    script(version="rocprof --stats", deaths={NAMES[3]: "SIGSEGV"})
    profiler = RocprofProfiler(harness=(sys.executable, str(tmp_path / "harness.py")))
    found = by_name(profiler.screen(plain_session(session, tmp_path), alone(CANDIDATES)))
    assert found[NAMES[3]].outcome is Outcome.CRASHED
    assert "Memory access fault" in found[NAMES[3]].message
    _assert_measured(found, but=(NAMES[3],))


def test_legacy_rocprof_refuses_a_folder_with_spaces(session: Session) -> None:
    """It would run the path through a shell."""
    with pytest.raises(ProfilerError, match="plain letters"):
        list(RocprofProfiler().screen(session, alone(CANDIDATES)))


def test_chunks_are_processes_of_their_own(session: Session, tmp_path: Path, script: Callable[..., None]) -> None:
    """A chunk size that does not divide the number of candidates changes nothing; results come chunk by chunk."""
    profiler = RocprofV3Profiler(chunk_size=3, harness=(sys.executable, str(tmp_path / "harness.py")))
    taken = []

    def farm() -> Iterator[Candidate]:
        for candidate in CANDIDATES:
            taken.append(candidate)
            yield candidate

    measurements = profiler.screen(session, alone(farm()))
    first = next(measurements)
    assert len(taken) == 3
    _assert_measured(by_name([first, *measurements]))


def test_tune_gemms_protocol_counts_the_last_of_ten_calls(session: Session, profiler: RocprofV3Profiler) -> None:
    """One sample, the tenth."""
    session = Session(**{**vars(session), "budget": Budget(protocol="tune_gemm")})
    assert screen_calls(session.budget) == 10
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    for candidate in CANDIDATES:
        assert found[candidate.config.name].samples_us == expected_us(candidate, range(9, 10))


def test_a_launch_error_is_its_configs_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """The text of the error is the message, in one line, and the process goes on."""
    script(errors={NAMES[0]: "OutOfResources: shared memory,\n  Required: 98304"})
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    assert found[NAMES[0]].outcome is Outcome.LAUNCH_FAILED
    assert found[NAMES[0]].message == "OutOfResources: shared memory, Required: 98304"
    _assert_measured(found, but=(NAMES[0],))


@pytest.mark.parametrize(("name", "trace"), [("SIGSEGV", "whole"), ("SIGSEGV", "partial"), ("SIGABRT", "whole")])
def test_a_crash_costs_its_config_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], name: str, trace: str
) -> None:
    """With the trace lost or written, all others are measured, and the culprit says which signal and why."""
    script(deaths={NAMES[5]: name, NAMES[2]: name}, trace=trace)
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    for culprit in (NAMES[2], NAMES[5]):
        assert found[culprit].outcome is Outcome.CRASHED
        assert f"killed by {name}: Memory access fault by {culprit}" in found[culprit].message
    _assert_measured(found, but=(NAMES[2], NAMES[5]))


@pytest.mark.parametrize("deaf", [False, True])
def test_a_hang_costs_its_config_alone(
    session: Session, tmp_path: Path, script: Callable[..., None], deaf: bool
) -> None:
    """Whether or not it writes its trace at SIGTERM, the config that hangs times out and the others are measured."""
    script(hangs=[NAMES[4]], deaf=deaf)
    harness = (sys.executable, str(tmp_path / "harness.py"))
    profiler = RocprofV3Profiler(harness=harness, edge_s=10.0, grace_s=0.3 if deaf else 5.0)
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    assert found[NAMES[4]].outcome is Outcome.TIMED_OUT
    assert ("SIGKILL" if deaf else "SIGTERM") in found[NAMES[4]].message
    _assert_measured(found, but=(NAMES[4],))


def test_lost_dispatches_are_not_seen_and_never_anothers(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A config that lacks one dispatch is reported so, with the folder to look at; its neighbours keep theirs."""
    script(lost={NAMES[6]: 1})
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    assert found[NAMES[6]].outcome is Outcome.NOT_SEEN
    folder = found[NAMES[6]].message.rpartition("see ")[2]
    assert os.path.isfile(os.path.join(folder, "job.json"))
    _assert_measured(found, but=(NAMES[6],))


def test_half_a_trace_gives_half_the_times(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Configs of the lost half are not seen; those of the other half have their own times."""
    script(trace="half")
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    lost = tuple(name for name, m in found.items() if m.outcome is Outcome.NOT_SEEN)
    assert 0 < len(lost) < len(NAMES)
    assert "1 cut off" in found[lost[0]].message
    _assert_measured(found, but=lost)


def test_no_trace_at_all_is_reported(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """One chunk without a trace gives not_seen for each config, with the reason."""
    script(trace="none")
    found = by_name(profiler.screen(session, alone(CANDIDATES)))
    assert {m.outcome for m in found.values()} == {Outcome.NOT_SEEN}
    assert all("wrote no trace" in m.message for m in found.values())


def test_chunk_after_chunk_without_a_trace_is_the_profilers_fault(
    session: Session, tmp_path: Path, script: Callable[..., None]
) -> None:
    """After three processes that measured nothing the run stops instead of going through all candidates."""
    script(trace="none")
    profiler = RocprofV3Profiler(chunk_size=2, harness=(sys.executable, str(tmp_path / "harness.py")))
    measured = []
    with pytest.raises(ProfilerError, match="3 processes in a row"):
        measured.extend(profiler.screen(session, alone(CANDIDATES)))
    assert len(CANDIDATES) > len(measured)


def test_a_trace_of_another_kind_is_refused(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A file that is no kernel trace is an error in one line, not a run of not_seen."""
    script(trace="foreign")
    with pytest.raises(ProfilerError, match="not a kernel trace") as caught:
        list(profiler.screen(session, alone(CANDIDATES)))
    assert "\n" not in str(caught.value)


def test_a_harness_that_cannot_start_is_an_error_with_its_words(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """No candidate is blamed for a process that never reached one."""
    script(at_start="ModuleNotFoundError: No module named 'torch'")
    measured = []
    with pytest.raises(ProfilerError, match="No module named 'torch'"):
        measured.extend(profiler.screen(session, alone(CANDIDATES)))
    assert measured == []


def test_a_device_that_breaks_again_and_again_stops_the_run(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Three deaths without one measured config between raise, after each culprit was reported."""
    script(deaths=dict.fromkeys(NAMES, "SIGABRT"))
    measured: list[Measurement] = []
    with pytest.raises(ProfilerError, match="3 processes in a row"):
        measured.extend(profiler.screen(session, alone(CANDIDATES)))
    assert [m.outcome for m in measured] == [Outcome.CRASHED] * 3


def test_a_death_after_the_last_config_blames_none(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A process that crashes at its exit loses nothing when its trace is there."""
    script(at_exit="SIGSEGV", trace="partial")
    _assert_measured(by_name(profiler.screen(session, alone(CANDIDATES))))


def test_screening_leaves_the_vendor_library_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A library that would end every process is not called before the finals."""
    script(deaths={VENDOR: "SIGSEGV"})
    _assert_measured(by_name(profiler.screen(session, alone(CANDIDATES))))


def test_neighbours_share_no_symbol_where_that_is_possible() -> None:
    """No two in a row have a kernel in common, and none is lost or doubled."""
    candidates = [make_candidate(number) for number in range(40)]
    ordered = spread_symbols(candidates)
    assert sorted(c.config.name for c in ordered) == sorted(c.config.name for c in candidates)
    symbols = [{binary.symbol for binary in candidate.binaries} for candidate in ordered]
    assert not any(a & b for a, b in itertools.pairwise(symbols))


def test_one_symbol_for_all_is_ordered_too() -> None:
    """Where all share a kernel the order is whatever it is, but complete."""
    candidates = [make_candidate(number, split_k=2 + number) for number in range(6)]
    assert sorted(spread_symbols(candidates), key=str) == sorted(candidates, key=str)


def test_the_watch_gives_start_and_end_their_own_limit(tmp_path: Path) -> None:
    """A config has its limit only while one is under way; the token changes with each line."""
    log = tmp_path / "log"
    watch = LaunchLogWatch(str(log), visits=1, limit_s=1.0, edge_s=60.0)
    seen: list[tuple[Any, float]] = [watch()]
    for line in ("start\n", "end\n"):
        with log.open("a") as file:
            file.write(line)
        seen.append(watch())
    assert [limit for _, limit in seen] == [60.0, 1.0, 60.0]
    assert len({token for token, _ in seen}) == 3


def test_the_watch_knows_the_clocks_lines(tmp_path: Path) -> None:
    """A reading of the clock before each round is no end of a turn; the one after the last round is at the end."""
    log = tmp_path / "log"
    watch = LaunchLogWatch(str(log), visits=2, limit_s=1.0, edge_s=60.0, rounds=2)
    limits = []
    for line in ("clock", "start", "end", "clock", "start", "end", "clock"):
        with log.open("a") as file:
            file.write(f"{line}\n")
        limits.append(watch()[1])
    assert limits == [1.0] * 5 + [60.0] * 2


def test_a_missing_profiler_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor raises, before anything is compiled or written."""
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.delenv("ROCM_PATH", raising=False)
    if not os.path.exists("/opt/rocm/bin/rocprofv3"):
        with pytest.raises(ProfilerError, match="rocprofv3 was not found"):
            RocprofV3Profiler()
    with pytest.raises(ProfilerError, match="not an executable"):
        RocprofV3Profiler("/no/such/rocprofv3")


def test_a_folder_that_rocprofv3_would_expand_is_refused(session: Session, profiler: RocprofV3Profiler) -> None:
    """Before any process starts."""
    session = Session(**{**vars(session), "work_dir": session.work_dir + "/100%"})
    with pytest.raises(ProfilerError, match="work folder"):
        list(profiler.screen(session, alone(CANDIDATES)))
