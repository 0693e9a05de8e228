"""Tests of genkern/search/select.py."""

from __future__ import annotations

import random
from dataclasses import replace

from forms import made
from hypothesis import given
from hypothesis import strategies as st

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Measurement, Outcome
from genkern.search.select import (
    estimate_of,
    families_without_times,
    faster_choice,
    finalists,
    interval_us,
    library_calls,
    ranking,
    semifinalists,
    spread_us,
)
from genkern.timing.libraries import VENDOR
from genkern.timing.session import Budget
from genkern.timing.statistics import is_tie

PROBLEM = GemmProblem(64, 4096, 4096)
PLAIN = Config("tiled", 64, 64, 32, 1, 1, 4, 2)
DEEP = replace(PLAIN, num_stages=4)
SPLIT = replace(PLAIN, SPLIT_K=4)
GROUPED = replace(PLAIN, GROUP_SIZE_M=8)


def final(config: Config | str, us: float, noise: float = 0.001, count: int = 20) -> Measurement:
    name = config if isinstance(config, str) else config.name
    draw = random.Random(name)
    samples = sorted(us * (1 + draw.gauss(0, noise)) for _ in range(count))
    middle = (samples[(count - 1) // 2] + samples[count // 2]) / 2
    samples = [sample * us / middle for sample in samples]
    draw.shuffle(samples)
    return Measurement(name, Outcome.MEASURED, "cudagraph", "final", us, tuple(samples))


def names(ranked: list[Measurement]) -> list[str]:
    return [m.config for m in ranked]


def test_finalists_are_the_fastest_that_were_measured() -> None:
    """Fastest first, at most so many, equal times by name, and nobody without a time."""
    screened = [
        Measurement("slow", Outcome.MEASURED, "cudagraph", duration_us=9.0),
        Measurement("b", Outcome.MEASURED, "cudagraph", duration_us=2.0),
        Measurement("a", Outcome.MEASURED, "cudagraph", duration_us=2.0),
        Measurement("fast", Outcome.MEASURED, "cudagraph", duration_us=1.0),
        Measurement("crashed", Outcome.CRASHED, "cudagraph", duration_us=0.5),
        Measurement("unseen", Outcome.NOT_SEEN, "cudagraph"),
    ]
    assert finalists(screened, 3) == ["fast", "a", "b"]
    assert len(finalists(screened, 99)) == 4


def test_of_long_calls_whatever_is_near_the_fastest_may_come_into_the_finals() -> None:
    """Of short ones the fastest alone; of the longest no more than a launch each takes a tenth of a second."""

    def screened(*us: float) -> list[Measurement]:
        times = enumerate(us)
        return [Measurement(f"c{i:03}", Outcome.MEASURED, "cudagraph", duration_us=each) for i, each in times]

    near = [280.0 + i / 10 for i in range(100)]
    assert semifinalists(screened(*near, 295.0, 900.0), 12) == [f"c{i:03}" for i in range(100)]
    assert semifinalists(screened(*[us / 10 for us in near]), 12) == [f"c{i:03}" for i in range(12)]
    assert semifinalists(screened(280.0, 400.0, 401.0), 2) == ["c000", "c001"]
    assert len(semifinalists(screened(*[280.0] * 500), 12)) == 160
    assert len(semifinalists(screened(*[5_000.0] * 500), 12)) == 20
    assert len(semifinalists(screened(*[50_000.0] * 500), 12)) == 12
    assert semifinalists([Measurement("crashed", Outcome.CRASHED, "cudagraph", duration_us=0.5)], 12) == []


def test_a_win_beyond_the_noise_wins() -> None:
    """However complex the config, and however many neighbours another one won."""
    ranked = ranking([final(PLAIN, 102), final(SPLIT, 100)], None, {PLAIN.name: 9})
    assert names(ranked) == [SPLIT.name, PLAIN.name]


def test_a_tie_goes_to_the_winner_of_neighbours_then_to_the_simpler() -> None:
    """Among those tied with the fastest; the rest stay behind in the order of their times."""
    finals = [final(SPLIT, 100), final(DEEP, 100.1), final(GROUPED, 100.2), final(replace(PLAIN, num_warps=8), 110)]
    assert names(ranking(finals))[:3] == [GROUPED.name, DEEP.name, SPLIT.name]
    assert names(ranking(finals, None, {SPLIT.name: 1, DEEP.name: 2}))[:3] == [DEEP.name, SPLIT.name, GROUPED.name]
    assert ranking(finals)[3].duration_us == 110


def test_the_simpler_leads_where_it_is_no_matter() -> None:
    """Two per mille apart it does; where it is more the faster one does, since that is the likelier to be faster."""
    assert ranking([final(SPLIT, 100, 0.05), final(PLAIN, 100.2, 0.05)])[0].config == PLAIN.name
    assert ranking([final(SPLIT, 100, 0.05), final(PLAIN, 100.4, 0.05)])[0].config == SPLIT.name
    assert ranking([final(SPLIT, 100), final(PLAIN, 102)])[0].config == SPLIT.name


def test_rounds_are_compared_one_by_one() -> None:
    """A clock that goes up and down for both leaves no doubt who is faster."""
    clock = [1 + 0.05 * random.Random(turn).random() for turn in range(20)]
    one, other = (
        replace(final(name, us), samples_us=tuple(us * each for each in clock))
        for name, us in ((PLAIN, 100), (VENDOR, 101))
    )
    assert is_tie(estimate_of(one), estimate_of(other))
    assert faster_choice(one, other) == "config"


def test_who_is_faster_is_said_by_the_common_rounds() -> None:
    """Whoever has other rounds besides, of a slower clock, has the larger median, and is the faster for all that."""
    short = replace(final(PLAIN, 103.5), samples_us=(103.4, 103.5, 103.6, 103.5, 103.5))
    long = (100.0, 100.1, 99.9, 100.0, 100.0, *[110.0] * 20)
    assert faster_choice(short, replace(final(VENDOR, 110), samples_us=long)) == "vendor"
    assert names(ranking([short, replace(final(SPLIT, 110), samples_us=long)])) == [SPLIT.name, PLAIN.name]
    # Two levels of the clock, and the config is the slower one in each round.
    clock = [100.0] * 5 + [102.5] * 7
    one = replace(final(PLAIN, 100.8), samples_us=tuple(each * 1.008 for each in clock))
    assert faster_choice(one, replace(final(VENDOR, 102.5), samples_us=tuple(clock))) == "vendor"


def test_a_tie_with_the_vendor_library_is_a_win_of_neither() -> None:
    """A dispatcher uses a config only where it is faster beyond doubt; whose the doubt is the choice says."""
    assert faster_choice(final(PLAIN, 100), final(VENDOR, 102)) == "config"
    assert faster_choice(final(PLAIN, 100), final(VENDOR, 100.3)) == "tie"
    assert faster_choice(final(PLAIN, 100.3), final(VENDOR, 100)) == "tie"
    assert faster_choice(final(PLAIN, 100, 0.05), final(VENDOR, 101, 0.05)) == "tie"
    assert faster_choice(final(PLAIN, 100), final(VENDOR, 90)) == "vendor"
    assert faster_choice(final(PLAIN, 100), None) == "config"
    assert faster_choice(final(PLAIN, 100), Measurement(VENDOR, Outcome.LAUNCH_FAILED, "cudagraph")) == "config"


def test_calls_of_libraries_are_ordered_by_their_times() -> None:
    """Those that may win; PyTorch's own before an equal one, and one without a time at the end, for what it says."""
    lt, torch, ours = final("cublaslt 131000 aa", 100), final(VENDOR, 100), final(PLAIN, 90)
    failed = Measurement("cublaslt 131000 bb", Outcome.LAUNCH_FAILED, "cudagraph")
    assert library_calls([ours, failed, lt, torch], Budget()) == [torch, lt, failed]
    assert library_calls([ours, lt, torch], Budget(libraries="triton,cublaslt")) == [lt]
    assert library_calls([ours, lt, torch], Budget(libraries="triton")) == []


def test_where_no_config_may_win_the_library_is_chosen() -> None:
    """However slow; but not where it has no call."""
    only = Budget(libraries="torch")
    assert faster_choice(final(PLAIN, 100), final(VENDOR, 200), only) == "vendor"
    assert faster_choice(final(PLAIN, 100), None, only) == "config"
    assert faster_choice(final(PLAIN, 100), Measurement(VENDOR, Outcome.NOT_SEEN, "rocprofv3"), only) == "config"


def test_a_config_that_beats_the_vendor_library_leads_a_tie() -> None:
    """The simpler of two tied configs is not taken when that gives away the win over the vendor library."""
    finals, vendor = [final(SPLIT, 100), final(PLAIN, 100.2)], final(VENDOR, 100.6)
    assert ranking(finals)[0].config == PLAIN.name
    assert ranking(finals, vendor)[0].config == SPLIT.name
    assert faster_choice(ranking(finals, vendor)[0], vendor) == "config"


def test_nobody_measured_is_an_empty_ranking() -> None:
    """Failures are no finalists."""
    assert ranking([Measurement(PLAIN.name, Outcome.CRASHED, "cudagraph", "final")]) == []
    assert ranking([]) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(90, 110), st.floats(0, 0.05)), min_size=1, max_size=6))
def test_a_ranking_keeps_everyone_and_leads_with_one_tied_with_the_fastest(
    values: list[tuple[int, float, float]],
) -> None:
    """Whatever the times and noise, in any order of the finals."""
    finals = [final(replace(PLAIN, GROUP_SIZE_M=i + 1), us, noise) for i, (_, us, noise) in enumerate(values)]
    ranked = ranking(finals)
    assert sorted(names(ranked)) == sorted(names(finals))
    fastest = min(finals, key=lambda m: m.duration_us or 0)
    assert is_tie(estimate_of(ranked[0]), estimate_of(fastest))
    assert ranking(list(reversed(finals))) == ranked


def test_intervals_and_spreads() -> None:
    """An interval needs two samples, a spread four; both are of the samples kept."""
    many = final(PLAIN, 100, 0.01)
    interval = interval_us(many)
    assert interval is not None
    assert min(many.samples_us) <= interval[0] <= 100 <= interval[1] <= max(many.samples_us)
    assert interval_us(replace(many, samples_us=(100.0,))) is None
    assert spread_us((1.0, 2.0, 3.0)) == 0
    assert spread_us((1.0, 5.0, 2.0, 3.0, 4.0, 100.0, 2.5, 3.5)) == 1.5
    assert estimate_of(Measurement("p", Outcome.MEASURED, "predicted", duration_us=7.0)).median_us == 7.0


def ended(family: str, *outcomes: Outcome, message: str = "") -> list[Measurement]:
    """Configs of a family with these outcomes."""
    names = [made(family, 16 * 2**place, 32, 32).name for place in range(len(outcomes))]
    return [
        Measurement(name, outcome, "cudagraph", message=message) for name, outcome in zip(names, outcomes, strict=True)
    ]


def test_a_family_of_which_nothing_runs_is_named() -> None:
    """With how its configs ended and what the first of them said, on one line; one that runs at all is not."""
    failed, late, refused = Outcome.COMPILE_FAILED, Outcome.COMPILE_TIMED_OUT, Outcome.LAUNCH_FAILED
    found = [
        *ended("tiled", Outcome.MEASURED, failed),
        *ended("persistent_tma", failed, late, failed, message="RuntimeError: PassManager::run\nfailed"),
        *ended("gemv", refused, Outcome.CRASHED, Outcome.OVER_RESOURCES, message="no"),
        *ended("tiled_tma", Outcome.OVER_RESOURCES, Outcome.IDENTICAL),
        *ended("skinny", refused, Outcome.WRONG),
    ]
    assert families_without_times(found) == [
        "no gemv config ran (launch_failed 1, crashed 1): no",
        "no persistent_tma config ran (compile_failed 2, compile_timed_out 1): RuntimeError: PassManager::run failed",
    ]


def test_families_that_end_alike_share_a_line() -> None:
    """A language that is not installed is said once, whatever the number of its families and their forms."""
    missing = "CuTe DSL is not installed"
    found = [
        *ended("cute_cooperative", Outcome.COMPILE_FAILED, message=missing),
        *ended("cute_ping_pong", Outcome.COMPILE_FAILED, Outcome.COMPILE_FAILED, message=missing),
        *ended("cute_tcgen05", Outcome.COMPILE_FAILED, message=missing),
        *ended("tiled", Outcome.MEASURED),
    ]
    assert families_without_times(found) == [f"no cute_tcgen05, cute_wgmma config ran (compile_failed 4): {missing}"]


def test_a_form_of_which_nothing_runs_is_named() -> None:
    """By its parameters, where others of its family ran or ended otherwise."""
    failed = Outcome.COMPILE_FAILED
    found = [
        *ended("warp_specialized", Outcome.MEASURED),
        *ended("warp_specialized_swapped_cluster4", failed, message="no cluster of 4"),
        *ended("warp_specialized_1x2", failed, failed, message="no cluster of 2"),
        *ended("tiled_swapped", Outcome.LAUNCH_FAILED, message="one"),
        *ended("tiled", Outcome.CRASHED, message="other"),
    ]
    assert families_without_times(found) == [
        "no tiled config ran (crashed 1): other",
        "no tiled_semaphore_swapped config ran (launch_failed 1): one",
        "no warp_specialized_ck4_swapped config ran (compile_failed 1): no cluster of 4",
        "no warp_specialized_cl1x2 config ran (compile_failed 2): no cluster of 2",
    ]
