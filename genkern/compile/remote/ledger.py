"""`Ledger`: the state of every unit that a cluster compiles. It uses neither Dask, nor threads, nor a clock.

A unit is in one state at a time:

    waiting --ask--> asked --answered--> ended     a binary, or why there is none
       |               |-----lost------> waiting   its node was lost, or died of it, or did not begin it;
       |               |                 ended     if that happened too often: nodes may die of this unit
       `----------withdrawn------------> ended     no node is there, or none answers, for too long

Units that are sent together are a task. News of a task that is no longer with the cluster is ignored, so events may
arrive in any order, twice or never.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from genkern.compile.cache import Failure
from genkern.compile.remote.unit import CompileUnit
from genkern.errors import InputError
from genkern.gemm.records import Binary, Outcome

# How often a unit is given to nodes that turn out unable to compile it, before it ends.
_TRIES = 2
# How often a unit may be lost with the nodes that were able to compile it; the next loss ends it. Dask counts the nodes
# that died with a task only while it has the task, and a unit that was lost is sent as a new task.
_LOSSES = 3
# Seconds within which lost nodes may come back.
WITHOUT_NODES_S = 180.0
# Seconds without any answer, in addition to the time limit of a compile, after which a cluster with nodes is given up.
# A scheduler gives up a silent node after 5 minutes (distributed.scheduler.worker-ttl).
SILENCE_S = 600.0

Made = Binary | Failure | Exception


class State(enum.Enum):
    WAITING = "waiting"
    ASKED = "asked"
    ENDED = "ended"


@dataclass(eq=False)
class WantedUnit:
    """A unit that is wanted, and the callback that receives its result, once."""

    unit: CompileUnit
    tell: Callable[[Made], object]
    state: State = State.WAITING
    tries: int = _TRIES
    losses: int = 0


@dataclass(frozen=True)
class RetryUnit:
    """A unit was not compiled and is to be tried again, as `unit`. `counts`: whether this uses up one of its tries."""

    unit: CompileUnit
    counts: bool


@dataclass(frozen=True)
class Task:
    """Units that one node compiles, one after another. `able`: addresses of the nodes that may; None if all may."""

    number: int
    wanted: Sequence[WantedUnit]
    able: frozenset[str] | None


@dataclass
class Ledger:
    """The state of all units and tasks. Not thread-safe."""

    _waiting: deque[list[WantedUnit]] = field(default_factory=deque)
    _tasks: dict[int, Task] = field(default_factory=dict)
    _numbers: int = 0
    # When a node was last able to compile, and when anything was last heard of a task.
    _able_s: float | None = None
    _heard_s: float = 0.0

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._tasks

    def want(self, units: Sequence[WantedUnit]) -> None:
        """Queue units that go to one node, in this order."""
        self._waiting.append(list(units))

    def ask(self, able: Collection[str], there: Collection[str], now_s: float) -> list[Task]:
        """Return the tasks to send now, given the addresses of the nodes that can compile and of all nodes."""
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
        """Queue tasks again that the cluster did not take, before all others."""
        for task in reversed(tasks):
            if self._tasks.pop(task.number, None) is not None:
                self._waiting.appendleft(self._wait(task.wanted))

    def task(self, number: int) -> Task | None:
        """Return a task that is with the cluster; None if it is not there, or not any more."""
        return self._tasks.get(number)

    def answered(self, number: int, answers: Sequence[Made | RetryUnit], now_s: float) -> None:
        """Record the answer for each unit of a task."""
        if (task := self._take(number, now_s)) is None:
            return
        left = []
        for wanted, answer in zip(task.wanted, answers, strict=True):
            if not isinstance(answer, RetryUnit):
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
        """Record that a task was lost with its nodes. `killed`: Dask gives the task up after too many nodes died with
        it."""
        if (task := self._take(number, now_s)) is None:
            return
        for wanted in task.wanted:
            wanted.losses += 1
            if wanted.losses > _LOSSES or (killed and len(task.wanted) == 1):
                _end(wanted, _deadly(wanted))
            else:
                # Sent alone from now on, since one of the units may be what kills nodes.
                self._waiting.append(self._wait([wanted]))

    def broken(self, number: int, error: Exception, now_s: float) -> None:
        """Record that a task raised an error that is not about its units, or returned an invalid answer."""
        if (task := self._take(number, now_s)) is not None:
            for wanted in task.wanted:
                _end(wanted, error)

    def looked(
        self, able: Collection[str], there: Collection[str], now_s: float, why_none: str, *, expects_more: bool = False
    ) -> list[int]:
        """Return the tasks to withdraw, given the nodes that are there now.

        These are the tasks whose nodes are all gone; their units wait again, since a restarted node has another
        address. Tasks that every node may do stay with the cluster, and all tasks stay while no node can compile. If a
        time limit has passed, all tasks are withdrawn and their units end: with `why_none` if no node can compile and
        none is expected.
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
        """End every unit with `error`; return the tasks to withdraw."""
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
    def _wait(units: Sequence[WantedUnit]) -> list[WantedUnit]:
        for wanted in units:
            wanted.state = State.WAITING
        return list(units)


def _end(wanted: WantedUnit, what: Made) -> None:
    assert wanted.state is not State.ENDED
    wanted.state = State.ENDED
    wanted.tell(what)


def _deadly(wanted: WantedUnit) -> Failure:
    message = "nodes were lost with it repeatedly"
    return Failure(wanted.unit.key, Outcome.COMPILE_FAILED, message, from_outside=True)
