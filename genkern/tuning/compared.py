"""Compared: a winner and what it is compared with, in the rounds that chose it and in those that say how fast it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from genkern.farm.bench import Job
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import Facts
from genkern.timing.libraries import OURS, library_of
from genkern.timing.profiler import Profiler


@dataclass(frozen=True)
class Compared:
    """The measurements of some rounds: the winner's, the runner-up's, those of the vendor library's best call, of
    PyTorch's own, of the config that was the winner before, and of the library's call that is the fastest of all where
    `vendor` is chosen by its order of sums. None: there is none, or it could not be timed.
    """

    winner: Measurement
    runner_up: Measurement | None = None
    vendor: Measurement | None = None
    torch: Measurement | None = None
    incumbent: Measurement | None = None
    fastest: Measurement | None = None

    def __iter__(self) -> Iterator[Measurement]:
        """Those that have a time; one that is two of these once."""
        found = (getattr(self, field.name) for field in fields(self))
        return iter({m.config: m for m in found if m is not None and m.outcome is Outcome.MEASURED}.values())

    @property
    def is_measured(self) -> bool:
        return self.winner.outcome is Outcome.MEASURED


def confirmed(profiler: Profiler, journal: Facts, job: Job, facts: ProblemFacts, chosen: Compared) -> Compared:
    """The same from rounds that chose none of them, which the journal may know from an earlier start.

    As it is where the winner's binaries are lost, which an earlier start timed and checked.
    """
    if chosen.winner.config not in job.ready:
        return chosen
    configs = [m.config for m in chosen if library_of(m.config) in OURS and m.config in job.ready]
    calls = [m.config for m in chosen if library_of(m.config) not in OURS]
    if not {*configs, *calls} <= {m.config for m in facts.confirmed}:
        finals = profiler.confirm(job.session, [job.ready[name] for name in configs], calls)
        journal.confirmed(job.session.problem, finals)
    found = {m.config: m for m in facts.confirmed}

    def again(before: Measurement | None) -> Measurement | None:
        return found.get(before.config) if before is not None and before.outcome is Outcome.MEASURED else before

    lost = replace(chosen.winner, outcome=Outcome.NOT_SEEN, message="it was not timed a second time")
    others = chosen.runner_up, chosen.vendor, chosen.torch, chosen.incumbent, chosen.fastest
    return Compared(again(chosen.winner) or lost, *map(again, others))
