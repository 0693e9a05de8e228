"""A winner and the calls that it is compared with, as timed in the finals and again in the confirmation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from genkern.compile.candidate_builder import ProblemBuild
from genkern.gemm.records import Measurement, Outcome
from genkern.journal.facts import ProblemFacts
from genkern.journal.journal import FactWriter
from genkern.timing.libraries import OURS, library_of
from genkern.timing.profiler import Profiler


@dataclass(frozen=True)
class ConfirmationRound:
    """Measurements from the same rounds. A field is None if there is no such call, or if it could not be timed.

    winner: the chosen config
    runner_up: the next best config
    vendor: the library's best call
    torch: PyTorch's own call
    incumbent: the config that won before
    fastest: the fastest library call, if `vendor` was chosen by its order of sums and may be slower
    """

    winner: Measurement
    runner_up: Measurement | None = None
    vendor: Measurement | None = None
    torch: Measurement | None = None
    incumbent: Measurement | None = None
    fastest: Measurement | None = None

    def __iter__(self) -> Iterator[Measurement]:
        """Yield each measurement that has a time; a call that fills two fields is yielded once."""
        found = (getattr(self, field.name) for field in fields(self))
        return iter({m.config: m for m in found if m is not None and m.outcome is Outcome.MEASURED}.values())

    @property
    def is_measured(self) -> bool:
        return self.winner.outcome is Outcome.MEASURED


def confirm(
    profiler: Profiler, journal: FactWriter, build: ProblemBuild, facts: ProblemFacts, chosen: ConfirmationRound
) -> ConfirmationRound:
    """Return `chosen` with times from new rounds (the confirmation), which had no influence on the choice.

    Times that an earlier start of the run wrote to the journal are used again. Return `chosen` unchanged if an earlier
    start timed and checked the winner and this start has no binary of it. If the winner got no new time, its outcome is
    NOT_SEEN.
    """
    if chosen.winner.config not in build.ready:
        return chosen
    configs = [m.config for m in chosen if library_of(m.config) in OURS and m.config in build.ready]
    calls = [m.config for m in chosen if library_of(m.config) not in OURS]
    if not {*configs, *calls} <= {m.config for m in facts.confirmed}:
        finals = profiler.confirm(build.session, [build.ready[name] for name in configs], calls)
        journal.add_confirmed(build.session.problem, finals)
    found = {m.config: m for m in facts.confirmed}

    def again(before: Measurement | None) -> Measurement | None:
        return found.get(before.config) if before is not None and before.outcome is Outcome.MEASURED else before

    lost = replace(chosen.winner, outcome=Outcome.NOT_SEEN, message="it was not timed a second time")
    others = chosen.runner_up, chosen.vendor, chosen.torch, chosen.incumbent, chosen.fastest
    return ConfirmationRound(again(chosen.winner) or lost, *map(again, others))
