"""The finals: time the best candidates and the vendor library against each other until the winner is clear.

The confirmation follows: the winner, the runner-up and the library's best calls are timed in rounds that do not
influence the choice. The smallest of several noisy medians is below its true time (the winner's curse), for configs as
for library algorithms, so the rounds that choose a winner do not measure its time.

Everything but the samplers, the clock and the pause is pure, so all of it is tested without a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from genkern.profiling.clocks import ThrottleGuard
from genkern.timing.libraries import OURS, VENDOR, library_of
from genkern.timing.statistics import estimate, is_beaten, relative_spread, stop_reason

Sampler = Callable[[], float]

# The device is steady when the median rounds of this many windows in a row agree within this ratio. A window is long
# enough for the power management to react in it: single rounds of a few milliseconds agree with the next ones even
# while the clock drifts.
_STEADY_WINDOWS = 3
_STEADY_RATIO = 1.005
_WINDOW_S = 0.1
_WINDOW_ROUNDS = (5, 50)
# Limits for a device that never becomes steady.
_WARM_UP_MOST_WINDOWS = 20
_WARM_UP_CAP_S = 2.0
# Warm-up of a device that was under load immediately before.
_HOT_WARM_S = 0.1
# Time limit of a confirmation, which ends at the limit if it has its minimum of rounds. 60 rounds of short calls take
# 0.05 to 0.3 s.
_CONFIRM_S = 0.6
# Semi-finals: seconds of warm-up rounds, and the number of rounds that count.
_SEMIFINAL_WARM_S, _SEMIFINAL_ROUNDS = 0.3, 5
# Rounds between two checks of the stopping rules and of candidates that drop out.
_CHECK_EVERY = 5
# After a throttled round the device rests, longer each time (NVBench's recovery time also starts at this value) ...
_REST_S = 0.05
_LONGEST_REST_S = 0.4
# ... and after this many in a row, about 2 s, the low clock is accepted as usual.
_MOST_DISCARDED_IN_A_ROW = 8
# A clock that rises and falls all the time would restart the rounds forever. After this many restarts, throttled rounds
# count too.
_MOST_STARTS_ANEW = 3


class SampleFailed(Exception):
    """A sampler could not take its sample; the device is unaffected."""


@dataclass(frozen=True)
class Rounds:
    """Number and length of the rounds.

    least, most: minimum and maximum number of rounds
    cap_s: seconds after which no more than `least` rounds run
    seed: seed of the shuffled order
    hot: the device was under the same load a moment ago, so a short warm-up is enough
    confirm: these are the rounds of a confirmation: no candidate drops out, and no sample ends the rounds, since rounds
        that end as soon as one candidate leads are biased towards it
    """

    least: int
    most: int
    cap_s: float
    seed: int
    hot: bool = False
    confirm: bool = False


def confirmation_rounds(least: int, most: int, seed: int) -> Rounds:
    """Return the rounds of a confirmation for finals that have `least` to `most` rounds."""
    return Rounds(least, most, _CONFIRM_S, seed, hot=True, confirm=True)


@dataclass
class Finals:
    """The result of the finals.

    samples_us: times in microseconds by name
    discarded: number of discarded samples by name: throttled ones, and all samples before a restart
    errors: error message by name of the racers that failed
    rounds: number of rounds that counted
    stopped: what ended the rounds
    """

    samples_us: dict[str, list[float]]
    discarded: dict[str, int]
    errors: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    stopped: str = ""


def semifinal(samplers: Mapping[str, Sampler], most: int, *, now: Callable[[], float] = time.monotonic) -> list[str]:
    """Return the names of the `most` fastest candidates, fastest first. A candidate whose sampler fails is left out.

    The candidates are ranked by medians of a few rounds, after warm-up rounds that bring the clock to its value in the
    finals. After each round the slower half drops out, but twice `most` candidates always stay: a round of 160 very
    long calls takes 0.3 s.
    """
    rounds = Finals({name: [] for name in samplers}, {})
    racing, shuffle, started_s = dict(samplers), random.Random(0), now()
    while racing and now() - started_s < _SEMIFINAL_WARM_S:
        _round(racing, rounds, shuffle)
    for _ in range(_SEMIFINAL_ROUNDS):
        for name, sample_us in _round(racing, rounds, shuffle).items():
            rounds.samples_us[name].append(sample_us)
        order = sorted(racing, key=lambda name: median(rounds.samples_us[name]))
        racing = {name: racing[name] for name in order[: max(2 * most, len(order) // 2)]}
    return list(racing)[:most]


def run_finals(
    samplers: Mapping[str, Sampler],
    rounds: Rounds,
    guard: ThrottleGuard,
    *,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], None] = time.sleep,
) -> Finals:
    """Warm up, then time all samplers in shuffled rounds until `stop_reason` holds or rounds or time are used up.

    Except in a confirmation, candidates that are clearly beaten drop out and keep their samples. PyTorch's own call of
    the vendor library never drops out; another library call drops out only if a library call clearly beats it.
    A sampler that raises SampleFailed is removed, and its error is recorded. Samplers return microseconds.
    """
    finals = Finals({name: [] for name in samplers}, dict.fromkeys(samplers, 0))
    racing = dict(samplers)
    if rounds.hot:
        _warm_again(racing, finals, guard, now)
    else:
        _warm_up(racing, finals, guard, now)
    started_s = now()
    shuffle = random.Random(rounds.seed)
    spreads: list[float] = []
    in_a_row = starts_anew = 0
    before_mhz = guard.read()
    while racing and not finals.stopped:
        taken = _round(racing, finals, shuffle)
        after_mhz = guard.read()
        throttled, before_mhz = guard.throttled(before_mhz, after_mhz), after_mhz
        if throttled and starts_anew < _MOST_STARTS_ANEW:
            in_a_row += 1
            for name in taken:
                finals.discarded[name] += 1
            if in_a_row >= _MOST_DISCARDED_IN_A_ROW:
                guard.accept()
                racing = _start_anew(samplers, finals)
                starts_anew += 1
                spreads.clear()
            rest(min(_LONGEST_REST_S, _REST_S * in_a_row))
            before_mhz = guard.read()
            continue
        in_a_row = 0
        finals.rounds += 1
        for name, sample_us in taken.items():
            finals.samples_us[name].append(sample_us)
        if not racing:
            break
        spreads.append(max(relative_spread(finals.samples_us[name]) for name in racing))
        finals.stopped = _after_round(racing, finals, spreads, rounds, now() - started_s)
    return finals


def _start_anew(samplers: Mapping[str, Sampler], finals: Finals) -> dict[str, Sampler]:
    """Discard all samples, which were taken at an earlier clock, and return all racers that did not fail."""
    for name, samples in finals.samples_us.items():
        finals.discarded[name] += len(samples)
        samples.clear()
    finals.rounds = 0
    return {name: sampler for name, sampler in samplers.items() if name not in finals.errors}


def _after_round(
    racing: dict[str, Sampler], finals: Finals, spreads: list[float], rounds: Rounds, elapsed_s: float
) -> str:
    if finals.rounds >= rounds.most:
        return "rounds used up"
    if rounds.confirm:
        return "time used up" if finals.rounds >= rounds.least and elapsed_s >= rounds.cap_s else ""
    if finals.rounds % _CHECK_EVERY:
        return ""
    _drop_beaten(racing, finals)
    if finals.rounds < rounds.least:
        return ""
    if elapsed_s >= rounds.cap_s:
        return "time used up"
    return stop_reason({name: finals.samples_us[name] for name in racing}, spreads)


def _drop_beaten(racing: dict[str, Sampler], finals: Finals) -> None:
    """Remove beaten racers.

    Configs are compared with the fastest racer, library calls with the fastest library call.
    """
    estimates = {name: estimate(finals.samples_us[name]) for name in racing}
    of_library = {name: known for name, known in estimates.items() if library_of(name) not in OURS}
    for name, known in estimates.items():
        rivals = of_library if name in of_library else estimates
        leader = min(rivals.values(), key=lambda e: e.median_us)
        if name != VENDOR and is_beaten(known, leader):
            del racing[name]


def _round(racing: dict[str, Sampler], finals: Finals, shuffle: random.Random) -> dict[str, float]:
    """Take one sample of each racer in shuffled order and return them. Racers that fail are removed."""
    order = list(racing)
    shuffle.shuffle(order)
    taken = {}
    for name in order:
        try:
            taken[name] = racing[name]()
        except SampleFailed as error:
            finals.errors[name] = str(error)
            del racing[name]
    return taken


def _warm_up(racing: dict[str, Sampler], finals: Finals, guard: ThrottleGuard, now: Callable[[], float]) -> None:
    """Run whole rounds until three windows in a row agree within 0.5 %, at most 20 windows or 2 s."""
    started_s = now()
    order = random.Random(0)
    medians: list[float] = []
    while racing and len(medians) < _WARM_UP_MOST_WINDOWS and now() - started_s < _WARM_UP_CAP_S:
        before = len(racing)
        median_us = _window(racing, finals, guard, order, now)
        medians = [*medians, median_us] if len(racing) == before else []
        last = medians[-_STEADY_WINDOWS:]
        if len(last) == _STEADY_WINDOWS and max(last) <= min(last) * _STEADY_RATIO:
            return


def _warm_again(racing: dict[str, Sampler], finals: Finals, guard: ThrottleGuard, now: Callable[[], float]) -> None:
    """Run whole rounds for 0.1 s, at most 50."""
    started_s, order = now(), random.Random(0)
    for _ in range(_WINDOW_ROUNDS[1]):
        _round(racing, finals, order)
        guard.read()
        if now() - started_s >= _HOT_WARM_S:
            return


def _window(
    racing: dict[str, Sampler],
    finals: Finals,
    guard: ThrottleGuard,
    order: random.Random,
    now: Callable[[], float],
) -> float:
    """Return the median total of the rounds of one window, in microseconds."""
    started_s = now()
    least, most = _WINDOW_ROUNDS
    totals_us: list[float] = []
    while len(totals_us) < least or (now() - started_s < _WINDOW_S and len(totals_us) < most):
        totals_us.append(sum(_round(racing, finals, order).values()))
        guard.read()
    return median(totals_us)
