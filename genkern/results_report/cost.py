"""What a run cost, from its journal: the timeline of each device, compile time, and time in which the GPUs worked."""

from __future__ import annotations

import time
from collections.abc import Iterator

from genkern.journal.facts import JournalFacts, ProblemFacts
from genkern.results_report.record import Run, Stage

# Stages of a size in which its device launches kernels all the time.
_ON_DEVICE = ("re-time", "check", "confirm")
SCREEN, PRUNE = "compile and screen", "prune"


def run_of(journal: JournalFacts, results: str) -> Run | None:
    """Return the cost of the last start of a run; None if the journal has no start."""
    if not journal.starts:
        return None
    start = journal.starts[-1]
    facts = [each for each in journal.facts.values() if each.begun is not None]
    stages = tuple(_timeline(journal, start.time_s))
    devices = sorted({each.begun.device_index for each in facts if each.begun is not None})
    ends = [each.ended.time_s for each in facts if each.ended is not None and each.ended.time_s is not None]
    wall_s = max(ends) - start.time_s if ends else None
    measure_s = _measure_s(facts) if ends and len(journal.starts) == 1 else None
    idle_s = None
    if wall_s is not None and measure_s is not None:
        idle_s = max(0.0, wall_s * len(devices) - measure_s)
    compiled = [each.compiled for each in facts if each.compiled is not None]
    return Run(
        results=results,
        command=start.command,
        started=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(start.time_s)),
        starts=len(journal.starts),
        devices=len(devices),
        sizes=len(facts),
        wall_s=wall_s,
        compile_s=_compile_s(facts),
        measure_s=measure_s,
        idle_s=idle_s,
        configs=sum(each.begun.configs for each in facts if each.begun is not None) if facts else None,
        binaries=sum(each.binaries + each.failed for each in compiled) if compiled else None,
        cached=sum(each.cached for each in compiled) if compiled else None,
        stages=stages,
    )


def _timeline(journal: JournalFacts, start_s: float) -> Iterator[Stage]:
    """Yield the stages of each size one after another from its beginning; all but the first follow without a gap."""
    for problem, facts in journal.facts.items():
        if facts.begun is None or facts.ended is None or facts.ended.time_s is None:
            continue
        begin_s, device = facts.begun.time_s - start_s, facts.begun.device_index
        for name, seconds in facts.ended.stage_s.items():
            if name != PRUNE:
                yield Stage(problem.size, device, name, begin_s, begin_s + seconds)
                begin_s += seconds


def _measure_s(facts: list[ProblemFacts]) -> float | None:
    """Return the seconds in which the GPUs launched kernels; None if a measurement does not say how long it took."""
    total = 0.0
    for each in facts:
        took = [measurement.took_ms for measurement in each.screened.values()]
        known = [took_ms for took_ms in took if took_ms is not None]
        if len(known) < len(took):
            return None
        total += sum(known) / 1e3
        if each.ended is not None:
            total += sum(each.ended.stage_s.get(stage, 0.0) for stage in _ON_DEVICE)
    return total


def _compile_s(facts: list[ProblemFacts]) -> float | None:
    """Return the processor seconds of compiles, each binary once; None if no binary says how long its compile took."""
    seconds = {made.key: made.compile_s for each in facts for made in each.made.values() if made.compile_s is not None}
    return sum(seconds.values()) if seconds else None
