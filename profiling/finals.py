"""The finals: the best candidates and the vendor library timed against each other until it is clear who won.

Then the confirmation: the one chosen, the runner-up and the library's best calls in rounds that chose nobody. The least
of several noisy medians is lower than the time that it is of (the winner's curse), for configs as for the library's
algorithms, so rounds that choose do not say how fast the chosen one is.

Pure but for the samplers, the clock and the pause, so that everything here is tested without a GPU.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from genkern.profiling.clocks import ThrottleGuard
from genkern.timing.libraries import OURS, VENDOR, library_of
from genkern.timing.statistics import beaten, estimate, relative_spread, stop_reason

Sampler = Callable[[], float]

# Steady state: the median rounds of so many windows in a row agree this well. A window is long enough for the power
# management to act in it: rounds of a few milliseconds agree with their neighbours while the clock still drifts.
_STEADY_WINDOWS = 3
_STEADY_RATIO = 1.005
_WINDOW_S = 0.1
_WINDOW_ROUNDS = (5, 50)
# For a device that never gets there.
_WARM_UP_MOST_WINDOWS = 20
_WARM_UP_CAP_S = 2.0
# Where the device was under load before.
_HOT_WARM_S = 0.1
# The rounds of a confirmation end after so long, once there are the least: 60 of short calls take 0.05 to 0.3 s.
_CONFIRM_S = 0.6
# The semi-finals: seconds of rounds before those that count.
_SEMIFINAL_WARM_S, _SEMIFINAL_ROUNDS = 0.3, 5
# The stopping rules and the dropping out are looked at every so many rounds.
_CHECK_EVERY = 5
# After a throttled round the device rests, longer each time (NVBench's recovery time starts here too) ...
_REST_S = 0.05
_LONGEST_REST_S = 0.4
# ... and after so many in a row, about 2 s, the low clock is what there is.
_MOST_DISCARDED_IN_A_ROW = 8
# A clock that goes up and down all the time would start the rounds anew for ever: then that is what there is.
_MOST_STARTS_ANEW = 3


class SampleFailed(Exception):
    """A sampler could not take its sample; the device is as it was."""


@dataclass(frozen=True)
class Rounds:
    """How many rounds the finals have, `least` to `most`; after `cap_s` seconds no more than `least`.

    `hot`: the device was under the same load a moment ago, so that a short warm-up does. With `confirm` these are the
    rounds of a confirmation: nobody drops out, and no sample ends them, since rounds that end when somebody is ahead
    say that he is.
    """

    least: int
    most: int
    cap_s: float
    seed: int
    hot: bool = False
    confirm: bool = False


def confirmation_rounds(least: int, most: int, seed: int) -> Rounds:
    """The rounds of a confirmation where finals have `least` to `most`."""
    return Rounds(least, most, _CONFIRM_S, seed, hot=True, confirm=True)


@dataclass
class Finals:
    """What came of them. `discarded` counts the throttled samples by name; `stopped` says what ended the rounds."""

    samples_us: dict[str, list[float]]
    discarded: dict[str, int]
    errors: dict[str, str] = field(default_factory=dict)
    rounds: int = 0
    stopped: str = ""


def semifinal(samplers: Mapping[str, Sampler], most: int, *, now: Callable[[], float] = time.monotonic) -> list[str]:
    """Names of the `most` fastest once the device is warm, fastest first; without those whose sampler fails.

    By medians of a few rounds, behind some that make the clock what it is in the finals. After each of them the slower
    half is out, while more than twice as many as are wanted are left: 160 of the longest calls take 0.3 s a round.
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
    """Warm up, then time all in shuffled rounds until `stop_reason` holds or the rounds are used up.

    But for a confirmation, candidates that are clearly beaten drop out and keep the samples that they have. Of the
    vendor library, PyTorch's own call stays, and another one unless a call of the library itself beats it.
    A sampler that raises SampleFailed is out, with its error. Samplers return microseconds.
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
    """What was sampled at the clock of before does not compare with what comes."""
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
    """The fastest of all is what configs are judged by, the fastest of the vendor library what its calls are."""
    estimates = {name: estimate(finals.samples_us[name]) for name in racing}
    of_library = {name: known for name, known in estimates.items() if library_of(name) not in OURS}
    for name, known in estimates.items():
        rivals = of_library if name in of_library else estimates
        leader = min(rivals.values(), key=lambda e: e.median_us)
        if name != VENDOR and beaten(known, leader):
            del racing[name]


def _round(racing: dict[str, Sampler], finals: Finals, shuffle: random.Random) -> dict[str, float]:
    """One sample of each in shuffled order; those that fail leave the race."""
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
    """Run whole rounds until three windows in a row have the same median round within 0.5 %."""
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
    """Run whole rounds for one window."""
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
    """The median total of the rounds of one window, in microseconds."""
    started_s = now()
    least, most = _WINDOW_ROUNDS
    totals_us: list[float] = []
    while len(totals_us) < least or (now() - started_s < _WINDOW_S and len(totals_us) < most):
        totals_us.append(sum(_round(racing, finals, order).values()))
        guard.read()
    return median(totals_us)
