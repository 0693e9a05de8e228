"""The hard limit of a search (--budget): a number of seconds or of binaries, whatever its strategy asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from genkern.errors import InputError
from genkern.search.strategy import Unit

_MOST_S, _MOST_BINARIES = 86_400.0, 1_000_000
_SAID = re.compile(r"(?P<number>[0-9]{1,9}(\.[0-9]{1,6})?)(?P<seconds>s?)")


@dataclass(frozen=True)
class Limit:
    """The limits of the search of one size: its seconds, and the binaries that it may measure; None: no limit.

    `said` is the value of the option.
    """

    seconds: float | None = None
    binaries: int | None = None
    said: str = ""

    @classmethod
    def parse(cls, text: str) -> Limit:
        """Parse `30s`, `2.5s` or `200`. Raises InputError for anything else."""
        if (parts := _SAID.fullmatch(text)) is not None:
            number = float(parts["number"])
            if parts["seconds"] and 0.1 <= number <= _MOST_S:
                return cls(seconds=number, said=f"{number:g}s")
            if not parts["seconds"] and number.is_integer() and 1 <= number <= _MOST_BINARIES:
                return cls(binaries=int(number), said=f"{number:.0f}")
        raise InputError(
            f"--budget {text[:40]}: write seconds from 0.1s to {_MOST_S:.0f}s, or binaries from 1 to {_MOST_BINARIES}"
        )


NO_LIMIT = Limit()


class Allowance:
    """Decides which units may be made if no more than `most` binaries may be measured (None: any number).

    `spent` are binaries that count from the start. A unit whose binary already counts is free. Units that do not fit
    wait, since another unit may be refused, or dropped before it is measured.
    """

    def __init__(self, most: int | None, spent: Collection[Hashable]) -> None:
        self._most = most
        self._spent = set(spent)
        self._measured = set(spent)
        self._waiting: list[Unit] = []

    @property
    def left(self) -> int | None:
        """The number of further binaries that may be measured; None: any number."""
        return None if self._most is None else max(0, self._most - len(self._spent))

    @property
    def leaves_out(self) -> bool:
        """True if a unit waits that does not fit."""
        return bool(self._waiting)

    def take(self, room: int, ask: Callable[[int], Sequence[Unit]]) -> list[Unit]:
        """Return at most `room` units that may be made: waiting ones, or those that `ask` returns if none waits."""
        if not self._waiting:
            self._waiting = list(ask(room))
        taken: list[Unit] = []
        waiting: list[Unit] = []
        for unit in self._waiting:
            fits = unit.compiled in self._spent or self.left != 0
            if fits and len(taken) < room:
                self._spent.add(unit.compiled)
                taken.append(unit)
            else:
                waiting.append(unit)
        self._waiting = waiting
        return taken

    def measured(self, unit: Unit) -> None:
        """Record that a unit is going to be measured: it counts from now on."""
        self._measured.add(unit.compiled)

    def unmeasured(self, unit: Unit) -> None:
        """Record that a unit was refused, or dropped before it was measured."""
        if unit.compiled not in self._measured:
            self._spent.discard(unit.compiled)

    def forget(self, units: Iterable[Unit]) -> list[Unit]:
        """Remove those of `units` that wait, and return the units that do not."""
        gone = [unit for unit in units if unit in self._waiting]
        self._waiting = [unit for unit in self._waiting if unit not in gone]
        return [unit for unit in units if unit not in gone]
