"""Ledger: which units are with a cluster, and what becomes of each; knows nothing of Dask, of threads or of a clock.

A unit is in one state at a time:

    waiting --ask--> asked --answered--> ended     a binary, or why there is none
       |               |-----lost------> waiting   its nodes are gone, or died of it, or it was not begun there;
       |               |                 ended     where that was too often: it may be what nodes die of
       `----------withdrawn------------> ended     no node is there, or none answers, for too long

Units that are asked for together are a task. What is heard of a task that is not with the cluster any more changes
nothing, so events may come in any order, twice or never.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from genkern.errors import InputError
from genkern.farm.cache import Failure
from genkern.farm.remote.unit import Unit
from genkern.gemm.records import Binary, Outcome

# A unit comes to a node that is known not to compile where all others were lost: so often it is tried again.
_TRIES = 2
# It is withdrawn where all nodes that might do it are lost: Dask counts those that died of it only while it has it.
_LOSSES = 3
# Nodes that were lost may come back within that.
WITHOUT_NODES_S = 180.0
# With nodes there, and nothing heard of any unit for so long, beside what a compile may take: no cluster is as slow. A
# scheduler gives up a node that says nothing after 5 minutes (distributed.scheduler.worker-ttl).
SILENCE_S = 600.0

Made = Binary | Failure | Exception


class State(enum.Enum):
    WAITING = "waiting"
    ASKED = "asked"
    ENDED = "ended"


@dataclass(eq=False)
class Wanted:
    """A unit that is wanted, and who is told what became of it, once."""

    unit: Unit
    tell: Callable[[Made], object]
    state: State = State.WAITING
    tries: int = _TRIES
    losses: int = 0


@dataclass(frozen=True)
class Again:
    """A unit was not made, and is asked for once more, as `unit`; too often where it counts as a try."""

    unit: Unit
    counts: bool


@dataclass(frozen=True)
class Task:
    """Units that one node makes, one after another; `able` are the nodes that may, by address: None where all may."""

    number: int
    wanted: Sequence[Wanted]
    able: frozenset[str] | None


@dataclass
class Ledger:
    """Not safe to use from several threads."""

    _waiting: deque[list[Wanted]] = field(default_factory=deque)
    _tasks: dict[int, Task] = field(default_factory=dict)
    _numbers: int = 0
    # When a node was able last, and when anything was heard of a task.
    _able_s: float | None = None
    _heard_s: float = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._tasks

    def want(self, units: Sequence[Wanted]) -> None:
        """These go to one node, in this order."""
        self._waiting.append(list(units))

    def ask(self, able: Collection[str], there: Collection[str], now_s: float) -> list[Task]:
        """What is to be asked of the cluster now, with these nodes there, of which these compile."""
        if not able:
            return []
        where = None if len(able) == len(there) else frozenset(able)
        if not self._tasks:
            self._heard_s = now_s
        asked = []
        while self._waiting:
            self._numbers += 1
            task = self._tasks[self._numbers] = Task(self._numbers, self._waiting.popleft(), where)
            for wanted in task.wanted:
                wanted.state = State.ASKED
            asked.append(task)
        return asked

    def not_asked(self, tasks: Sequence[Task]) -> None:
        """The cluster did not take these: they wait again, before others."""
        for task in reversed(tasks):
            if self._tasks.pop(task.number, None) is not None:
                self._waiting.appendleft(self._wait(task.wanted))

    def task(self, number: int) -> Task | None:
        """With the cluster; None where it is not, or not any more."""
        return self._tasks.get(number)

    def answered(self, number: int, answers: Sequence[Made | Again], now_s: float) -> None:
        """What came of each unit of a task."""
        if (task := self._take(number, now_s)) is None:
            return
        left = []
        for wanted, answer in zip(task.wanted, answers, strict=True):
            if not isinstance(answer, Again):
                _end(wanted, answer)
            elif answer.counts and wanted.tries == 1:
                _end(wanted, _deadly(wanted))
            else:
                wanted.tries -= answer.counts
                wanted.unit = answer.unit
                left.append(wanted)
        if left:
            self._waiting.append(self._wait(left))

    def lost(self, number: int, now_s: float, *, killed: bool = False) -> None:
        """A task is gone with its nodes; `killed`: so many have died with it that Dask gives it to no more."""
        if (task := self._take(number, now_s)) is None:
            return
        for wanted in task.wanted:
            wanted.losses += 1
            if wanted.losses > _LOSSES or (killed and len(task.wanted) == 1):
                _end(wanted, _deadly(wanted))
            else:
                # Alone: one of them may be what ends nodes.
                self._waiting.append(self._wait([wanted]))

    def broken(self, number: int, error: Exception, now_s: float) -> None:
        """A task has raised what is not of its units, or answered what is no answer."""
        if (task := self._take(number, now_s)) is not None:
            for wanted in task.wanted:
                _end(wanted, error)

    def looked(
        self, able: Collection[str], there: Collection[str], now_s: float, why_none: str, *, expects_more: bool = False
    ) -> list[int]:
        """Tasks to withdraw, now that these nodes are there: those of which all nodes are gone, which wait again, since
        a node that is started anew has another address; or all, which end, where a time limit has passed: `why_none`
        where none of the nodes compiles, nor is expected to come.
        """
        if able or expects_more or self._able_s is None or self.is_empty:
            self._able_s = now_s
        if now_s - self._able_s > WITHOUT_NODES_S:
            return self.give_up(InputError(why_none))
        if not self._tasks:
            self._heard_s = now_s
        longest_s = max((each.unit.timeout_s for task in self._tasks.values() for each in task.wanted), default=0.0)
        if now_s - self._heard_s > SILENCE_S + longest_s:
            return self.give_up(InputError(f"--cluster: no node has answered for {now_s - self._heard_s:.0f} s"))
        if not able:
            return []
        gone = [task.number for task in self._tasks.values() if task.able is not None and task.able.isdisjoint(there)]
        for number in gone:
            self.lost(number, now_s)
        return gone

    def give_up(self, error: Exception) -> list[int]:
        """Nothing is waited for any more: every unit ends so. Returns the tasks to withdraw."""
        tasks, self._tasks = self._tasks, {}
        waiting, self._waiting = self._waiting, deque()
        for group in [*(task.wanted for task in tasks.values()), *waiting]:
            for wanted in group:
                _end(wanted, error)
        return [*tasks]

    def _take(self, number: int, now_s: float) -> Task | None:
        if (task := self._tasks.pop(number, None)) is not None:
            self._heard_s = now_s
        return task

    @staticmethod
    def _wait(units: Sequence[Wanted]) -> list[Wanted]:
        for wanted in units:
            wanted.state = State.WAITING
        return list(units)


def _end(wanted: Wanted, what: Made) -> None:
    assert wanted.state is not State.ENDED
    wanted.state = State.ENDED
    wanted.tell(what)


def _deadly(wanted: Wanted) -> Failure:
    message = "nodes were lost with it again and again"
    return Failure(wanted.unit.key, Outcome.COMPILE_FAILED, message, from_outside=True)
