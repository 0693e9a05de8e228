"""Tests of profiling/finals.py with simulated samplers, clock and time."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, cycle, islice

import pytest

from genkern.profiling.clocks import ThrottleGuard
from genkern.profiling.finals import Finals, Rounds, SampleFailed, confirmation_rounds, run_finals, semifinal
from genkern.timing.libraries import VENDOR
from genkern.timing.statistics import estimate, is_tie

ROUNDS = Rounds(10, 60, 1e9, seed=0)
# Rounds of a steady device's warm-up: three windows of fifty.
WARM_ROUNDS = 150


class Bench:
    """A device on which each name has its time and noise; `throttle` says the clock's share before each reading."""

    def __init__(self, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        self.order: list[str] = []
        self.now_s = 0.0
        self.rested_s: list[float] = []
        self.share: Callable[[], float] = lambda: 1.0
        self._share = 1.0

    def sampler(self, name: str, us: float, noise: float = 0.0) -> Callable[[], float]:
        def sample() -> float:
            self.order.append(name)
            self.now_s += us * 1e-6
            return us / self._share * (1 + self.draw.gauss(0, noise))

        return sample

    def mhz(self) -> float:
        self._share = self.share()
        return 2000 * self._share

    def run(self, samplers: dict[str, Callable[[], float]], rounds: Rounds = ROUNDS, clock: bool = True) -> Finals:
        guard = ThrottleGuard(self if clock else None)
        return run_finals(samplers, rounds, guard, now=lambda: self.now_s, rest=self._rest)

    def _rest(self, seconds: float) -> None:
        self.now_s += seconds
        self.rested_s.append(seconds)


def test_semifinals_are_won_by_who_is_fastest_when_the_device_is_warm() -> None:
    """Times of the first third of a second do not count, and whoever fails is out."""
    builder = Bench()

    def hot(cold_us: float, hot_us: float) -> Callable[[], float]:
        def sample() -> float:
            builder.now_s += cold_us * 1e-6
            return cold_us if builder.now_s < 0.2 else hot_us

        return sample

    def fails() -> float:
        raise SampleFailed("out of resources")

    samplers = {"sprinter": hot(250.0, 290.0), "steady": hot(262.0, 280.0), "slow": hot(270.0, 285.0)}
    assert semifinal({**samplers, "failing": fails}, 2, now=lambda: builder.now_s) == ["steady", "slow"]
    assert semifinal({"failing": fails}, 2, now=lambda: builder.now_s) == []


def test_of_many_semifinalists_few_have_all_rounds() -> None:
    """A half is out after each round, and the fastest of 160 are found all the same, with 0.5 % of noise."""
    builder = Bench()
    samplers = {f"c{i}": builder.sampler(f"c{i}", 2_000 * (1 + 0.05 * (i * 61 % 160) / 160), 0.005) for i in range(160)}
    found = semifinal(samplers, 12, now=lambda: builder.now_s)
    assert len(found) == 12
    assert "c0" in found
    # One round makes the device warm.
    assert len(builder.order) == 160 + 160 + 80 + 40 + 24 + 24


def test_a_clear_winner_ends_the_rounds_early() -> None:
    """At the least number of rounds, when nobody is tied with the fastest."""
    builder = Bench()
    finals = builder.run(
        {name: builder.sampler(name, us, 0.002) for name, us in (("a", 100), ("b", 102), (VENDOR, 105))}
    )
    assert (finals.stopped, finals.rounds) == ("separated", 10)
    assert {name: len(samples) for name, samples in finals.samples_us.items()} == {"a": 10, "b": 10, VENDOR: 10}
    assert not finals.errors


def test_noise_gets_more_rounds_and_they_pay() -> None:
    """Two candidates 1.5 % apart under 2 % noise are told apart in most runs, within the most rounds."""
    right = 0
    for seed in range(30):
        builder = Bench(seed)
        finals = builder.run({"a": builder.sampler("a", 100, 0.02), "b": builder.sampler("b", 101.5, 0.02)})
        estimates = {name: estimate(samples) for name, samples in finals.samples_us.items()}
        assert 10 <= finals.rounds <= 60
        assert estimates["a"].median_us < estimates["b"].median_us or is_tie(estimates["a"], estimates["b"])
        right += not is_tie(estimates["a"], estimates["b"])
    assert right > 15


def test_of_the_library_the_best_and_pytorchs_own_stay() -> None:
    """A config that is far ahead ends no call of the library's; a call of the library that is ahead ends another."""
    builder = Bench()
    times = {"a": 100, "b": 100.7, VENDOR: 180, "cublaslt 1 aa": 150, "cublaslt 1 bb": 160, "cublaslt 1 cc": 150.5}
    finals = builder.run({name: builder.sampler(name, us, 0.01) for name, us in times.items()})
    assert len(finals.samples_us["cublaslt 1 bb"]) == 5
    for name in (VENDOR, "cublaslt 1 aa", "cublaslt 1 cc"):
        assert len(finals.samples_us[name]) == finals.rounds > 10


def test_clearly_beaten_finalists_drop_out_and_the_library_stays() -> None:
    """A candidate more than 3 % behind has five rounds; the vendor library has them all, however slow it is."""
    builder = Bench()
    times = {"a": 100, "b": 100.7, "slow": 110, VENDOR: 300}
    finals = builder.run({name: builder.sampler(name, us, 0.01) for name, us in times.items()})
    assert len(finals.samples_us["slow"]) == 5
    assert len(finals.samples_us[VENDOR]) == len(finals.samples_us["a"]) == finals.rounds > 10


def test_rounds_are_whole_and_shuffled() -> None:
    """Each round has everyone once, in orders that differ and that the seed decides."""
    orders = []
    for seed in (1, 1, 2):
        builder = Bench()
        samplers = {name: builder.sampler(name, us, 0.001) for name, us in (("a", 100), ("b", 101), ("c", 102))}
        finals = builder.run(samplers, Rounds(10, 60, 1e9, seed))
        rounds = [tuple(builder.order[i : i + 3]) for i in range(0, len(builder.order), 3)]
        assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
        assert len(set(rounds)) > 2
        orders.append(rounds[-finals.rounds :])
    assert orders[0] == orders[1] != orders[2]


def test_the_first_samples_warm_up() -> None:
    """While rounds still get slower nothing is kept: a boost of 8 % at the start is in no sample."""
    builder = Bench()
    taken = 0

    def heating() -> float:
        nonlocal taken
        taken += 1
        return 100 - max(0.0, 8 - taken)

    finals = builder.run({"a": heating})
    assert set(finals.samples_us["a"]) == {100}


def test_a_slow_drift_is_waited_for() -> None:
    """A clock that falls by 5 % over a second, a tenth of a percent a round, is not steady before it stays."""
    builder = Bench()

    def heating() -> float:
        builder.now_s += 5e-3
        return 100 + 5 * min(1.0, builder.now_s)

    finals = builder.run({"a": heating})
    assert set(finals.samples_us["a"]) == {105}
    assert builder.now_s < 2


@pytest.mark.parametrize(("us", "warm_s"), [(100, 20 * 50 * 2 * 100e-6), (50_000, 2.0)])
def test_a_device_that_never_settles_is_measured_all_the_same(us: float, warm_s: float) -> None:
    """Warming up has an end, in rounds and in time."""
    builder = Bench()
    finals = builder.run({"a": builder.sampler("a", us, 0.2), "b": builder.sampler("b", us, 0.2)})
    assert finals.rounds >= 10
    assert len(builder.order) / 2 - finals.rounds == pytest.approx(warm_s / (2 * us * 1e-6), abs=5)


def test_throttled_rounds_are_discarded_and_counted() -> None:
    """A spell at 60 % of the clock leaves no sample behind, only a count; the device rests, longer each time."""
    builder = Bench()
    spell = iter([1.0] * (WARM_ROUNDS + 5) + [0.6] * 4)
    builder.share = lambda: next(spell, 1.0)
    finals = builder.run({"a": builder.sampler("a", 100), "b": builder.sampler("b", 104)})
    assert set(finals.samples_us["a"]) == {100}
    assert finals.discarded["a"] == finals.discarded["b"] == len(builder.rested_s) > 0
    assert finals.rounds == 10
    assert builder.rested_s == sorted(builder.rested_s)


def test_a_clock_that_stays_low_becomes_the_usual_one() -> None:
    """A device that was capped for good is measured at its new clock, after a few seconds, not never."""
    builder = Bench()
    spell = iter([1.0] * (WARM_ROUNDS + 8))
    builder.share = lambda: next(spell, 0.5)
    finals = builder.run({"a": builder.sampler("a", 100), "b": builder.sampler("b", 104)})
    assert finals.rounds == 10
    assert set(finals.samples_us["a"]) == {200}
    # "b" had dropped out at the old clock; its old samples would now look fast.
    assert set(finals.samples_us["b"]) == {208}
    assert finals.discarded["a"] > 8
    assert sum(builder.rested_s) < 4


@pytest.mark.parametrize(("high", "low"), [(1, 9), (4, 17), (6, 20), (10, 20), (50, 60)])
def test_a_clock_that_never_comes_to_rest_does_not_go_on_for_ever(high: int, low: int) -> None:
    """Up for some readings, down for more, and so on: the finals end after some seconds, with their rounds."""
    builder = Bench()
    spells = chain([1.0] * WARM_ROUNDS, islice(cycle([1.0] * high + [0.5] * low), 2000))
    builder.share = lambda: next(spells)
    finals = builder.run({"a": builder.sampler("a", 100, 0.01), "b": builder.sampler("b", 101, 0.01)})
    assert finals.rounds >= 10
    assert len(finals.samples_us["a"]) == finals.rounds
    assert sum(builder.rested_s) < 30


def test_without_a_clock_every_round_counts() -> None:
    """No reading, no discarding."""
    builder = Bench()
    finals = builder.run({"a": builder.sampler("a", 100)}, clock=False)
    assert (finals.rounds, finals.discarded) == (10, {"a": 0})


def test_the_numbers_of_rounds_are_kept() -> None:
    """Ties under noise that keeps moving use all rounds up; a time limit ends them after the least."""
    builder = Bench(3)
    tied_pair = {"a": builder.sampler("a", 100, 0.02), "b": builder.sampler("b", 100, 0.02)}
    finals = builder.run(tied_pair, Rounds(10, 20, 1e9, 0))
    assert (finals.rounds, finals.stopped) == (20, "rounds used up")
    finals = builder.run(tied_pair, Rounds(10, 60, 1e-3, 0))
    assert (finals.rounds, finals.stopped) == (10, "time used up")
    finals = builder.run(tied_pair, Rounds(3, 3, 1e9, 0))
    assert finals.rounds == 3


@pytest.mark.parametrize("after", [0, 40])
def test_a_sampler_that_fails_is_out(after: int) -> None:
    """Its error is kept and the others go on, whether it fails while warming up or later."""
    builder = Bench()
    left = after

    def failing() -> float:
        nonlocal left
        left -= 1
        if left < 0:
            raise SampleFailed("CUPTI lost a record")
        return 100.0

    samplers = {"a": builder.sampler("a", 100, 0.02), "bad": failing, "b": builder.sampler("b", 100, 0.02)}
    finals = builder.run(samplers)
    assert finals.errors == {"bad": "CUPTI lost a record"}
    assert len(finals.samples_us["a"]) == finals.rounds >= 10


def test_nobody_to_time_is_no_round() -> None:
    """All samplers failing, or none at all, ends at once."""

    def failing() -> float:
        raise SampleFailed("no")

    assert Bench().run({}).rounds == 0
    assert Bench().run({"a": failing}).errors == {"a": "no"}


def test_a_confirmation_has_the_same_rounds_whoever_is_ahead() -> None:
    """Nobody drops out of it and nothing that is sampled ends it; a throttled round is taken again."""
    builder = Bench()
    spell = iter([1.0] * 60 + [0.6])
    builder.share = lambda: next(spell, 1.0)
    samplers = {"a": builder.sampler("a", 20), "slow": builder.sampler("slow", 29), VENDOR: builder.sampler(VENDOR, 25)}
    finals = builder.run(samplers, confirmation_rounds(10, 60, 0))
    assert (finals.rounds, finals.stopped) == (60, "rounds used up")
    assert {name: len(samples) for name, samples in finals.samples_us.items()} == dict.fromkeys(samplers, 60)
    assert {20.0} == set(finals.samples_us["a"])
    assert finals.discarded["a"] == finals.discarded["slow"] > 0


@pytest.mark.parametrize(("sample_s", "rounds"), [(0.002, 60), (0.004, 38), (0.02, 10)])
def test_a_confirmation_is_short(sample_s: float, rounds: int) -> None:
    """0.6 seconds, of the longest calls those of the least rounds; all others have the most."""
    builder = Bench()

    def slow() -> float:
        builder.now_s += sample_s
        return 500.0

    finals = builder.run(dict.fromkeys("abcd", slow), confirmation_rounds(10, 60, 0))
    assert (finals.rounds, finals.stopped) == (rounds, "rounds used up" if rounds == 60 else "time used up")
    warm_rounds = -(-0.1 // (4 * sample_s))
    assert builder.now_s == pytest.approx((warm_rounds + rounds) * 4 * sample_s)


def test_a_confirmation_has_no_more_rounds_than_were_asked_for() -> None:
    """--num_iters says how many at most."""
    rounds = confirmation_rounds(3, 3, seed=7)
    assert (rounds.least, rounds.most, rounds.seed, rounds.confirm) == (3, 3, 7, True)
