"""Retimed: measures a bundle's winners and this machine's library again, in rounds like those of a run's finals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from genkern.gemm.records import CONFIG_WINS, VENDOR_WINS, Measurement, Outcome
from genkern.packing.prover import PackedCandidate, Sessions
from genkern.packing.rows import without_kernels
from genkern.result.result import Result
from genkern.screen import aligned
from genkern.search.select import faster_choice, library_calls
from genkern.timing.libraries import VENDOR, call_name
from genkern.timing.profiler import Racer
from genkern.timing.session import Budget, Session

# Times that differ by less than this factor are not reported.
_NEWS = 1.05


class RaceTimer(Protocol):
    """Measures times on a GPU (SupervisedProfiler)."""

    time_source: str

    def retime(self, session: Session, finalists: Sequence[Racer]) -> list[Measurement]: ...
    def confirm(self, session: Session, finalists: Sequence[Racer], calls: Sequence[str]) -> list[Measurement]: ...


@dataclass(frozen=True)
class RetimedWinner:
    """A winner before and after it was timed anew.

    before: the winner as it was packed
    now: the winner with its new times; None if neither its kernels nor the library's call remain
    why: the reason if the call now goes to the library, or ""
    """

    before: Result
    now: Result | None
    why: str = ""

    @property
    def is_switched(self) -> bool:
        """True if the library now serves a problem that a kernel served before."""
        return self.before.choice == CONFIG_WINS and (self.now is None or self.now.choice != CONFIG_WINS)

    @property
    def is_news(self) -> bool:
        """True if the winner, or its speed relative to the library, has changed, or if it was only predicted before."""
        before, now = _speed(self.before), _speed(self.now)
        changed = before is not None and now is not None and abs(math.log(now / before)) > math.log(_NEWS)
        return self.is_switched or bool(self.why) or changed or self.before.is_predicted


def retime(
    place: int,
    winner: Result,
    where: str,
    races: RaceTimer,
    sessions: Sessions,
    versions: Mapping[str, str],
    budget: Budget,
) -> RetimedWinner:
    """Race the winner at this index of the bundle's file `where` against the library, for the winner's own M.

    The library's best call is the fastest of many, so its time is too small. If it is not clearly slower even so,
    further rounds compare only that call, PyTorch's own call and the winner. `versions`: versions of the software that
    measures, by name. Raises ProfilerError.
    """
    session = sessions.of(winner, winner.problem.M, budget)
    own = winner.call_for(winner.problem.M)
    racers = []
    if own is not None:
        racers.append(
            PackedCandidate(winner.config_name, where, (place, winner.calls.index(own)), winner.deterministic)
        )
    found = {m.config: m for m in races.retime(session, racers)}
    library = next(iter(library_calls(found.values(), budget)), None)
    ours = found.get(winner.config_name) if racers else None
    if library is not None and ours is not None and faster_choice(ours, library, budget) != CONFIG_WINS:
        calls = [library.config, *([VENDOR] if _us(found.get(VENDOR)) else [])]
        found |= {m.config: m for m in races.confirm(session, racers, list(dict.fromkeys(calls)))}
        library, ours = found[library.config], found[winner.config_name]
    us, library_us, torch_us = _us(ours), _us(library), _us(found.get(VENDOR))
    now = replace(winner, vendor_us=library_us or winner.vendor_us, torch_us=torch_us or winner.torch_us)
    if library is not None and library_us is not None:
        now = replace(now, vendor=call_name(library.config))
    if us is None and racers:
        why = " ".join(ours.message.split()) if ours is not None and ours.message else "it could not be timed"
        return RetimedWinner(winner, without_kernels(now) if winner.choice == CONFIG_WINS else now.with_calls(()), why)
    said = tuple(sorted({**dict(winner.versions), **versions}.items()))
    now = replace(now, duration_us=us or now.duration_us, versions=said, time_source=races.time_source)
    if winner.choice != CONFIG_WINS:
        return RetimedWinner(winner, _beside_library(now))
    if ours is not None and faster_choice(ours, library, budget) == VENDOR_WINS:
        return RetimedWinner(winner, _beside_library(replace(now, choice=VENDOR_WINS)), "the library is faster")
    return RetimedWinner(winner, now)


def _beside_library(winner: Result) -> Result:
    """Return the winner with its kernels if they beat PyTorch's own call, which serves other M; else without them."""
    us, torch_us = winner.duration_us, winner.torch_us
    return winner if us is not None and torch_us is not None and us < torch_us else winner.with_calls(())


def news(found: Iterable[RetimedWinner]) -> list[str]:
    """Return a table of what has changed, as lines with a header; empty if nothing has."""
    lines: list[tuple[str, ...]] = [("size", "config", "us before", "us", "library before", "library", "called now")]
    lines += [tuple(_cells(each)) for each in found if each.is_news]
    return aligned(lines, ("us before", "us", "library before", "library")) if len(lines) > 1 else []


def _cells(each: RetimedWinner) -> Iterator[str]:
    before, now = each.before, each.now
    yield before.problem.size + (f" {before.problem.layout}" if before.problem.layout != "TN" else "")
    yield before.config_name
    for name in ("duration_us", "vendor_us"):
        for winner in (before, now):
            us = None if winner is None or winner.is_predicted else getattr(winner, name)
            yield f"{us:.2f}" if us else ""
    yield "its kernel" if now is not None and now.choice == CONFIG_WINS else f"the library: {each.why or 'as before'}"


def _speed(winner: Result | None) -> float | None:
    """Return the library's time divided by the winner's."""
    if winner is None or winner.duration_us is None or winner.vendor_us is None:
        return None
    return winner.vendor_us / winner.duration_us


def _us(measurement: Measurement | None) -> float | None:
    return measurement.duration_us if measurement is not None and measurement.outcome is Outcome.MEASURED else None
