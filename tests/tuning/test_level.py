"""One binary under twelve names, and the library as fast as they are: who is said to be the faster one?"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import TIE, Candidate, Measurement, Outcome
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import Journal
from genkern.profiling.clocks import ThrottleGuard
from genkern.profiling.finals import Finals, Rounds, confirmation_rounds, run_finals
from genkern.result.result import Result
from genkern.search.select import finalists, library_calls
from genkern.timing.libraries import OURS, VENDOR, StoredAlgorithm, library_of
from genkern.timing.profiler import ExclusiveDevice
from genkern.timing.session import Budget, Session
from genkern.tuning.tune import Provenance, Report, Tuner

PROBLEM = GemmProblem(64, 4096, 4096)
TWELVE = [Config("tiled", 64, 64, 32, num_stages=stages) for stages in range(2, 14)]
CALLS = [VENDOR, *(StoredAlgorithm(131000, bytes([i] * 64)).name for i in (1, 2))]
# Fewer rounds than usual, so that there is more to see, and to make it quick.
BUDGET = Budget(min_rounds=10, final_rounds=20)
SIZES = 60


class NoisyDevice(ExclusiveDevice):
    """A profiler on which every call takes 30 us, up to 2 % of noise a sample and a clock that wanders by 1 %."""

    time_source = "cudagraph"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw = random.Random(seed)
        self._now_s, self._clock = 0.0, 1.0

    def retime(self, session: Session, finals: Sequence[Candidate]) -> list[Measurement]:
        rounds = Rounds(BUDGET.min_rounds, BUDGET.final_rounds, 1e9, self._seed)
        return self._run([*(each.config.name for each in finals), *CALLS], rounds)

    def confirm(self, session: Session, finals: Sequence[Candidate], calls: Sequence[str]) -> list[Measurement]:
        rounds = confirmation_rounds(BUDGET.min_rounds, BUDGET.final_rounds, self._seed)
        return self._run([*(each.config.name for each in finals), *calls], rounds)

    def _run(self, names: Sequence[str], rounds: Rounds) -> list[Measurement]:
        samplers = {name: self._sampler() for name in names}
        finals: Finals = run_finals(samplers, rounds, ThrottleGuard(None), now=lambda: self._now_s)
        return [
            Measurement(name, Outcome.MEASURED, self.time_source, "final", median(samples), tuple(samples))
            for name, samples in finals.samples_us.items()
        ]

    def _sampler(self) -> Callable[[], float]:
        def sample() -> float:
            # Long enough that a warm-up has few rounds.
            self._now_s += 2e-3
            self._clock = min(1.005, max(0.995, self._clock + self._draw.gauss(0, 0.0005)))
            return 30.0 * self._clock * (1 + self._draw.gauss(0, 0.02))

        return sample


def decided(seed: int, folder: Path) -> tuple[Result, ProblemFacts]:
    """What becomes of one size, and the facts that it follows from."""
    nothing: Any = None
    journal = Journal(folder / f"{seed}", {})
    provenance = Provenance("sm_90", "NVIDIA H200", ())
    tuner = Tuner(nothing, nothing, NoisyDevice(seed), None, journal, nothing, provenance, BUDGET)
    report = Report(PROBLEM)
    report.candidates = {
        config.name: Measurement(config.name, Outcome.MEASURED, "cudagraph", "screen", 30.0) for config in TWELVE
    }
    session = Session("m.py", PROBLEM, "sm_90", 0, str(folder), BUDGET)
    build = ProblemBuild(session, {config.name: Candidate(config, ()) for config in TWELVE})
    winner = tuner._choose(build, journal.of(PROBLEM), report)
    journal.close()
    assert winner is not None
    return winner, journal.of(PROBLEM)


def test_one_binary_under_twelve_names_is_level_with_itself(tmp_path: Path) -> None:
    """The mean ratio of the library over genkern is 1, and the same ratio of the rounds that chose is not.

    There the fastest of twelve was set against the fastest of three, and both were luck.
    """
    reported, chosen, ties = [], [], 0
    for seed in range(SIZES):
        winner, facts = decided(seed, tmp_path)
        assert winner.vendor_us is not None
        reported.append(winner.vendor_us / winner.duration_us)
        ties += winner.choice == TIE
        of_finals = {m.config: m.duration_us or 0.0 for m in facts.finals}
        ours = finalists((m for m in facts.finals if library_of(m.config) in OURS), 1)[0]
        chosen.append((library_calls(facts.finals, BUDGET)[0].duration_us or 0.0) / of_finals[ours])
    assert abs(fmean(reported) - 1) < 2 * error(reported)
    assert fmean(chosen) - 1 > 4 * error(chosen)
    # A true tie is called one but for what an interval of 95 % leaves.
    assert ties >= 0.9 * SIZES


def error(ratios: Sequence[float]) -> float:
    """The standard error of the mean."""
    return stdev(ratios) / len(ratios) ** 0.5
