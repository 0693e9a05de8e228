"""Tests of genkern.profiling.predict_profiler: every candidate has a predicted time, and says that it is one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from units import alone

from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Candidate, Outcome, Resources
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.search.guided.predicted_times import predicted_times
from genkern.timing.profiler import Profiler
from genkern.timing.session import Budget, Session

H200 = gpu_for_arch("sm_90")
PROBLEM = GemmProblem(4096, 6144, 4096)
CONFIG = Config("tiled", 128, 128, 64, GROUP_SIZE_M=8, num_warps=8, num_stages=3)
RESOURCES = Resources(registers=110, spills=0, shared_bytes=98304, scratch_bytes=0)


def candidate(config: Config = CONFIG, resources: Resources = RESOURCES) -> Candidate:
    return Candidate(config, (Binary("key", "/nowhere", "symbol", resources),))


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session("module.py", PROBLEM, "sm_90", 0, str(tmp_path), Budget())


def test_screen_labels_every_record(session: Session) -> None:
    """One record per candidate, in order, labelled predicted; one that cannot launch says why."""
    profiler: Profiler = PredictProfiler()
    wide = dataclasses.replace(CONFIG, BLOCK_SIZE_N=256)
    too_big = candidate(wide, Resources(registers=255, shared_bytes=300_000))
    no_binary = Candidate(dataclasses.replace(CONFIG, BLOCK_SIZE_K=32), ())

    first, second, third = profiler.screen(session, alone(iter([candidate(), too_big, no_binary])))
    profiler.close()

    assert (first.config, first.outcome, first.stage) == (CONFIG.name, Outcome.MEASURED, "screen")
    # The one predicted time of the config, whatever is known of its binary.
    assert first.duration_us == predicted_times(PROBLEM, [CONFIG], H200)[0].us
    assert first.samples_us == (first.duration_us,)
    assert (second.outcome, second.duration_us, second.samples_us) == (Outcome.OVER_RESOURCES, None, ())
    assert "shared memory of 300000 bytes" in second.message
    assert third.outcome is Outcome.MEASURED
    assert {"predicted"} == {record.time_source for record in (first, second, third)}


def test_screen_reads_a_growing_stream(session: Session) -> None:
    """The first prediction comes before the second candidate exists."""

    def farm() -> object:
        yield candidate()
        raise AssertionError("the second candidate was asked for too early")

    first = next(PredictProfiler().screen(session, alone(farm())))  # type: ignore[arg-type]
    assert first.outcome is Outcome.MEASURED


def test_retime_ranks_and_keeps_ties(session: Session) -> None:
    """Finalists come back fastest first; equal predictions keep their order, and the unfit come last."""
    slow = candidate(dataclasses.replace(CONFIG, BLOCK_SIZE_M=16))
    twin_a, twin_b = (candidate(dataclasses.replace(CONFIG, schedule_hint=hint)) for hint in ("none", "attention"))
    unfit = candidate(dataclasses.replace(CONFIG, num_warps=64))

    found = PredictProfiler().retime(session, [unfit, slow, twin_b, twin_a])

    assert [record.config for record in found] == [c.config.name for c in (twin_b, twin_a, slow, unfit)]
    assert {"final"} == {record.stage for record in found}
    assert found[-1].outcome is Outcome.OVER_RESOURCES


def test_device_name_picks_the_device(session: Session) -> None:
    """A slower memory of the same arch gives a longer time for a product that memory bounds."""
    thin = dataclasses.replace(session, problem=GemmProblem(1024, 65536, 256))
    screened = [next(PredictProfiler(name).screen(thin, alone([candidate()]))) for name in ("", "H100 PCIe")]
    times = [measurement.duration_us or 0.0 for measurement in screened]
    assert times[1] > times[0] > 0


def test_unknown_arch_is_an_input_error(session: Session) -> None:
    """An arch that the table does not hold is refused by name."""
    unknown = dataclasses.replace(session, arch="sm_35")
    with pytest.raises(InputError, match="sm_35"):
        list(PredictProfiler().screen(unknown, alone([candidate()])))
