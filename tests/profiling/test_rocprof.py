"""Tests of profiling/rocprof.py and launch_job.py against fake profilers: real processes, no device."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_rocprof
import pytest
from trace_formats import ROCPROF, ROCPROFV3

from genkern.config import Config
from genkern.errors import ProfilerError
from genkern.problem import GemmProblem
from genkern.profiling.launch_job import LaunchLogWatch, final_visits, screen_calls, spread_symbols
from genkern.profiling.rocprof import RocprofProfiler, RocprofV3Profiler
from genkern.profiling.session import VENDOR, Budget, Session
from genkern.records import Binary, Candidate, Measurement, Outcome, Resources


def _candidate(number: int, split_k: int = 1) -> Candidate:
    """Candidates 0 and 1 share a binary, 2 and 3 the next, and so on; split-K ones all share a reduction."""
    config = Config("tiled", 16 << number // 2, 64, 64, GROUP_SIZE_M=1 + number % 2, SPLIT_K=split_k)
    symbols = [f"tiled_BM{config.BLOCK_SIZE_M}"] + (["reduce_splits"] if split_k > 1 else [])
    binaries = tuple(Binary(symbol, f"/cache/{symbol}", symbol, Resources()) for symbol in symbols)
    return Candidate(config, binaries)


_CANDIDATES = [_candidate(number, split_k=4 if number == 5 else 1) for number in range(8)]
_NAMES = [candidate.config.name for candidate in _CANDIDATES]


@pytest.fixture(autouse=True)
def profilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake rocprofv3 and rocprof on PATH, below a folder with spaces and quotes, and their harness."""
    folder = tmp_path / 'it\'s "ROCm"'
    folder.mkdir()
    source = Path(fake_rocprof.__file__).read_text()
    for name in ("rocprofv3", "rocprof", "harness.py"):
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{source}")
        path.chmod(0o755)
    # The script file legacy rocprof passes on must be plain.
    plain = tmp_path / "harness.py"
    plain.write_text(source)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_FORMATS", str(Path(fake_rocprof.__file__).parent))
    monkeypatch.setenv("ROCPROF_OUTPUT_FORMAT", "json")
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCPROFV3", "ROCPROF", "FAKE_ROCPROF"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Tells the fake device what to do."""
    return lambda **values: monkeypatch.setenv("FAKE_ROCPROF", json.dumps(values))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """A session whose folder name is hostile."""
    budget = Budget(warmup=1, screen_launches=3, final_rounds=5, timeout_s=1.2)
    work_dir = str(tmp_path / "work 'a' \"b\"")
    return Session("gemm.py", GemmProblem(64, 64, 64), "gfx942", 2, work_dir, budget)


@pytest.fixture
def profiler(tmp_path: Path) -> RocprofV3Profiler:
    """rocprofv3 as found on PATH, with limits for tests."""
    return RocprofV3Profiler(harness=(sys.executable, str(tmp_path / "harness.py")), edge_s=10.0, grace_s=2.0)


def _expected_us(candidate: Candidate, calls: range) -> tuple[float, ...]:
    kernels = len(candidate.binaries)
    return tuple(kernels * fake_rocprof.duration_ns(candidate.config.name, call) / 1000 for call in calls)


def _by_name(measurements: Iterator[Measurement] | list[Measurement]) -> dict[str, Measurement]:
    """Measurements by config, having checked that every candidate has exactly one, and the vendor library in finals."""
    listed = list(measurements)
    library = [VENDOR] if listed[0].stage == "final" else []
    assert sorted(m.config for m in listed) == sorted([*_NAMES, *library])
    return {m.config: m for m in listed}


def _assert_measured(found: dict[str, Measurement], but: tuple[str, ...] = ()) -> None:
    """Every config except `but` has exactly its own times."""
    for candidate in _CANDIDATES:
        name = candidate.config.name
        if name not in but:
            assert found[name].outcome is Outcome.MEASURED, found[name]
            assert found[name].samples_us == _expected_us(candidate, range(1, 4))
            assert found[name].duration_us == statistics.median(found[name].samples_us)


@pytest.mark.parametrize("version", [*ROCPROFV3, "db"])
def test_screen_measures_every_candidate_whatever_the_version_writes(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], version: str
) -> None:
    """Each candidate has its own times, warm-up dropped, kernels of a call added, folders cleaned up."""
    script(version=version)
    found = _by_name(profiler.screen(session, iter(_CANDIDATES)))
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
    found = _by_name(profiler.screen(_plain(session, tmp_path), _CANDIDATES))
    _assert_measured(found)
    assert {m.time_source for m in found.values()} == {"rocprof"}


def _plain(session: Session, tmp_path: Path) -> Session:
    return Session(**{**vars(session), "work_dir": str(tmp_path / "work")})


def test_legacy_rocprof_hides_a_death_but_the_log_shows_it(
    session: Session, tmp_path: Path, script: Callable[..., None]
) -> None:
    """Exit code 0 and a missing end line still make the config a crash, with the program's last words."""
    script(version="rocprof --stats", deaths={_NAMES[3]: "SIGSEGV"})
    profiler = RocprofProfiler(harness=(sys.executable, str(tmp_path / "harness.py")))
    found = _by_name(profiler.screen(_plain(session, tmp_path), _CANDIDATES))
    assert found[_NAMES[3]].outcome is Outcome.CRASHED
    assert "Memory access fault" in found[_NAMES[3]].message
    _assert_measured(found, but=(_NAMES[3],))


def test_legacy_rocprof_refuses_a_folder_with_spaces(session: Session) -> None:
    """It would run the path through a shell."""
    with pytest.raises(ProfilerError, match="plain letters"):
        list(RocprofProfiler().screen(session, _CANDIDATES))


def test_chunks_are_processes_of_their_own(session: Session, tmp_path: Path, script: Callable[..., None]) -> None:
    """A chunk size that does not divide the number of candidates changes nothing; results come chunk by chunk."""
    profiler = RocprofV3Profiler(chunk_size=3, harness=(sys.executable, str(tmp_path / "harness.py")))
    taken = []

    def farm() -> Iterator[Candidate]:
        for candidate in _CANDIDATES:
            taken.append(candidate)
            yield candidate

    measurements = profiler.screen(session, farm())
    first = next(measurements)
    assert len(taken) == 3
    _assert_measured(_by_name([first, *measurements]))


def test_tune_gemms_protocol_counts_the_last_of_ten_calls(session: Session, profiler: RocprofV3Profiler) -> None:
    """One sample, the tenth."""
    session = Session(**{**vars(session), "budget": Budget(protocol="tune_gemm")})
    assert screen_calls(session.budget) == 10
    found = _by_name(profiler.screen(session, _CANDIDATES))
    for candidate in _CANDIDATES:
        assert found[candidate.config.name].samples_us == _expected_us(candidate, range(9, 10))


def test_a_launch_error_is_its_configs_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """The text of the error is the message, in one line, and the process goes on."""
    script(errors={_NAMES[0]: "OutOfResources: shared memory,\n  Required: 98304"})
    found = _by_name(profiler.screen(session, _CANDIDATES))
    assert found[_NAMES[0]].outcome is Outcome.LAUNCH_FAILED
    assert found[_NAMES[0]].message == "OutOfResources: shared memory, Required: 98304"
    _assert_measured(found, but=(_NAMES[0],))


@pytest.mark.parametrize(("name", "trace"), [("SIGSEGV", "whole"), ("SIGSEGV", "partial"), ("SIGABRT", "whole")])
def test_a_crash_costs_its_config_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], name: str, trace: str
) -> None:
    """With the trace lost or written, all others are measured, and the culprit says which signal and why."""
    script(deaths={_NAMES[5]: name, _NAMES[2]: name}, trace=trace)
    found = _by_name(profiler.screen(session, _CANDIDATES))
    for culprit in (_NAMES[2], _NAMES[5]):
        assert found[culprit].outcome is Outcome.CRASHED
        assert f"killed by {name}: Memory access fault by {culprit}" in found[culprit].message
    _assert_measured(found, but=(_NAMES[2], _NAMES[5]))


@pytest.mark.parametrize("deaf", [False, True])
def test_a_hang_costs_its_config_alone(
    session: Session, tmp_path: Path, script: Callable[..., None], deaf: bool
) -> None:
    """Whether or not it writes its trace at SIGTERM, the config that hangs times out and the others are measured."""
    script(hangs=[_NAMES[4]], deaf=deaf)
    harness = (sys.executable, str(tmp_path / "harness.py"))
    profiler = RocprofV3Profiler(harness=harness, edge_s=10.0, grace_s=0.3 if deaf else 5.0)
    found = _by_name(profiler.screen(session, _CANDIDATES))
    assert found[_NAMES[4]].outcome is Outcome.TIMED_OUT
    assert ("SIGKILL" if deaf else "SIGTERM") in found[_NAMES[4]].message
    _assert_measured(found, but=(_NAMES[4],))


def test_lost_dispatches_are_not_seen_and_never_anothers(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A config that lacks one dispatch is reported so, with the folder to look at; its neighbours keep theirs."""
    script(lost={_NAMES[6]: 1})
    found = _by_name(profiler.screen(session, _CANDIDATES))
    assert found[_NAMES[6]].outcome is Outcome.NOT_SEEN
    folder = found[_NAMES[6]].message.rpartition("see ")[2]
    assert os.path.isfile(os.path.join(folder, "job.json"))
    _assert_measured(found, but=(_NAMES[6],))


def test_half_a_trace_gives_half_the_times(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Configs of the lost half are not seen; those of the other half have their own times."""
    script(trace="half")
    found = _by_name(profiler.screen(session, _CANDIDATES))
    lost = tuple(name for name, m in found.items() if m.outcome is Outcome.NOT_SEEN)
    assert 0 < len(lost) < len(_NAMES)
    assert "1 cut off" in found[lost[0]].message
    _assert_measured(found, but=lost)


def test_no_trace_at_all_is_reported(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """One chunk without a trace gives not_seen for each config, with the reason."""
    script(trace="none")
    found = _by_name(profiler.screen(session, _CANDIDATES))
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
        measured.extend(profiler.screen(session, _CANDIDATES))
    assert len(_CANDIDATES) > len(measured)


def test_a_trace_of_another_kind_is_refused(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A file that is no kernel trace is an error in one line, not a run of not_seen."""
    script(trace="foreign")
    with pytest.raises(ProfilerError, match="not a kernel trace") as caught:
        list(profiler.screen(session, _CANDIDATES))
    assert "\n" not in str(caught.value)


def test_a_harness_that_cannot_start_is_an_error_with_its_words(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """No candidate is blamed for a process that never reached one."""
    script(at_start="ModuleNotFoundError: No module named 'torch'")
    measured = []
    with pytest.raises(ProfilerError, match="No module named 'torch'"):
        measured.extend(profiler.screen(session, _CANDIDATES))
    assert measured == []


def test_a_device_that_breaks_again_and_again_stops_the_run(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Three deaths without one measured config between raise, after each culprit was reported."""
    script(deaths=dict.fromkeys(_NAMES, "SIGABRT"))
    measured: list[Measurement] = []
    with pytest.raises(ProfilerError, match="3 processes in a row"):
        measured.extend(profiler.screen(session, _CANDIDATES))
    assert [m.outcome for m in measured] == [Outcome.CRASHED] * 3


def test_a_death_after_the_last_config_blames_none(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A process that crashes at its exit loses nothing when its trace is there."""
    script(at_exit="SIGSEGV", trace="partial")
    _assert_measured(_by_name(profiler.screen(session, _CANDIDATES)))


def test_retime_keeps_the_last_call_of_each_round(session: Session, profiler: RocprofV3Profiler) -> None:
    """One sample a round and finalist, in the order of the finalists, labelled final."""
    found = profiler.retime(session, _CANDIDATES)
    assert [m.config for m in found] == [*_NAMES, VENDOR]
    for measurement, candidate in zip(found[:-1], _CANDIDATES, strict=True):
        assert measurement.samples_us == _expected_us(candidate, range(1, 2)) * 5
        assert (measurement.outcome, measurement.stage) == (Outcome.MEASURED, "final")
    assert profiler.retime(session, []) == []


def test_retime_goes_on_without_a_finalist_that_fails(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A crash, a hang and an error cost one finalist each; the others are compared in full."""
    script(deaths={_NAMES[1]: "SIGSEGV"}, hangs=[_NAMES[2]], errors={_NAMES[3]: "no"})
    found = _by_name(profiler.retime(session, _CANDIDATES))
    outcomes = [found[name].outcome for name in _NAMES[1:4]]
    assert outcomes == [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.LAUNCH_FAILED]
    for name in _NAMES[:1] + _NAMES[4:]:
        assert len(found[name].samples_us) == session.budget.final_rounds


def test_retime_reports_a_finalist_that_the_trace_never_has(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Lost in every round, it is not seen; nobody gets its times."""
    script(lost={_NAMES[7]: 1})
    found = _by_name(profiler.retime(session, _CANDIDATES))
    assert found[_NAMES[7]].outcome is Outcome.NOT_SEEN
    for candidate in _CANDIDATES[:6]:
        assert found[candidate.config.name].samples_us == _expected_us(candidate, range(1, 2)) * 5
    shares_the_symbol = found[_NAMES[6]].samples_us
    assert set(shares_the_symbol) <= set(_expected_us(_CANDIDATES[6], range(1, 2)))


def test_retime_ends_when_every_process_dies_at_its_end(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A runtime that aborts in its own clean-up each time, and a finalist that no trace has: the others count."""
    script(lost={_NAMES[7]: 1}, at_exit="SIGABRT")
    found = _by_name(profiler.retime(session, _CANDIDATES))
    assert found[_NAMES[7]].outcome is Outcome.NOT_SEEN
    for candidate in _CANDIDATES[:6]:
        assert found[candidate.config.name].samples_us == _expected_us(candidate, range(1, 2)) * 5


_LIBRARY_US = sum(fake_rocprof.VENDOR_KERNELS.values()) / 1000


@pytest.mark.parametrize("version", [*ROCPROFV3, "db"])
def test_retime_times_the_vendor_library_whatever_the_version_writes(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None], version: str
) -> None:
    """One sample a round, the sum of the call's kernels; nothing of its first call, nor of what PyTorch set up."""
    script(version=version)
    *configs, vendor = profiler.retime(session, _CANDIDATES)
    assert (vendor.config, vendor.outcome, vendor.stage) == (VENDOR, Outcome.MEASURED, "final")
    assert vendor.samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)
    assert vendor.duration_us == vendor.samples_us[0]
    assert "10 of 10 calls" in vendor.message
    assert "Cijk_Ailk_Bljk" in vendor.message
    for measurement, candidate in zip(configs, _CANDIDATES, strict=True):
        assert measurement.samples_us == _expected_us(candidate, range(1, 2)) * 5
    assert os.listdir(session.work_dir) == []


@pytest.mark.parametrize("version", ROCPROF)
def test_legacy_rocprof_times_the_vendor_library_too(
    session: Session, tmp_path: Path, script: Callable[..., None], version: str
) -> None:
    """Also where no column numbers the launches."""
    script(version=version)
    profiler = RocprofProfiler(harness=(sys.executable, str(tmp_path / "harness.py")))
    vendor = profiler.retime(_plain(session, tmp_path), _CANDIDATES)[-1]
    assert (vendor.config, vendor.time_source) == (VENDOR, "rocprof")
    assert vendor.samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)


@pytest.mark.parametrize(
    ("fault", "outcome", "said"),
    [
        ({"errors": {VENDOR: "RuntimeError: _int_mm is not\n supported"}}, Outcome.LAUNCH_FAILED, "not supported"),
        ({"deaths": {VENDOR: "SIGSEGV"}}, Outcome.CRASHED, "SIGSEGV: Memory access fault by vendor"),
        ({"hangs": [VENDOR]}, Outcome.TIMED_OUT, "SIGTERM"),
        ({"lost": {VENDOR: 1}}, Outcome.NOT_SEEN, "the vendor library is not timed: the trace has no more than"),
        ({"vendor": {}}, Outcome.NOT_SEEN, "the vendor library is not timed: the trace has no kernel of it"),
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
    found = _by_name(profiler.retime(session, _CANDIDATES))
    assert found[VENDOR].outcome is outcome
    assert (found[VENDOR].duration_us, found[VENDOR].samples_us) == (None, ())
    assert said in found[VENDOR].message
    for candidate in _CANDIDATES:
        assert found[candidate.config.name].samples_us == _expected_us(candidate, range(1, 2)) * 5


def test_a_finalist_that_ends_the_process_leaves_the_vendor_library_in_the_race(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """It is timed in the rounds of those that are left, so that their times compare."""
    script(deaths={_NAMES[1]: "SIGSEGV"})
    found = _by_name(profiler.retime(session, _CANDIDATES))
    assert found[_NAMES[1]].outcome is Outcome.CRASHED
    assert found[VENDOR].samples_us == pytest.approx((_LIBRARY_US,) * session.budget.final_rounds)


def test_without_a_finalist_that_runs_there_is_no_vendor_library(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """Nothing is left to compare it with, so nothing is launched for it alone."""
    script(deaths=dict.fromkeys(_NAMES[:2], "SIGSEGV"))
    found = profiler.retime(session, _CANDIDATES[:2])
    assert [m.config for m in found] == _NAMES[:2]


def test_screening_leaves_the_vendor_library_alone(
    session: Session, profiler: RocprofV3Profiler, script: Callable[..., None]
) -> None:
    """A library that would end every process is not called before the finals."""
    script(deaths={VENDOR: "SIGSEGV"})
    _assert_measured(_by_name(profiler.screen(session, _CANDIDATES)))


def test_rounds_are_shuffled_and_reproducible(session: Session) -> None:
    """Every round has every finalist once; orders differ between rounds and repeat with the seed."""
    visits = final_visits(session, _CANDIDATES)
    rounds = [[v.name for v in visits[i : i + 8]] for i in range(0, len(visits), 8)]
    assert len(rounds) == session.budget.final_rounds
    assert all(sorted(one) == sorted(_NAMES) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert visits == final_visits(session, _CANDIDATES)


def test_neighbours_share_no_symbol_where_that_is_possible() -> None:
    """No two in a row have a kernel in common, and none is lost or doubled."""
    candidates = [_candidate(number) for number in range(40)]
    ordered = spread_symbols(candidates)
    assert sorted(c.config.name for c in ordered) == sorted(c.config.name for c in candidates)
    symbols = [{binary.symbol for binary in candidate.binaries} for candidate in ordered]
    assert not any(a & b for a, b in itertools.pairwise(symbols))


def test_one_symbol_for_all_is_ordered_too() -> None:
    """Where all share a kernel the order is whatever it is, but complete."""
    candidates = [_candidate(number, split_k=2 + number) for number in range(6)]
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
        list(profiler.screen(session, _CANDIDATES))
