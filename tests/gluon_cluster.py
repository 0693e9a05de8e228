"""Programs of tests/gluon_machine.py that run at the same time, one partition of one of them until it waits."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gluon_machine import Agent, Machine

DEADLOCK = "a barrier that nobody completes"


class Ended(BaseException):
    """Raised in partitions that wait, when another one has failed."""


class Cluster:
    """Programs that run at the same time and reach each other's shared memory; one partition runs until it waits.

    `enter` is called with the machine whose partition is to run.
    """

    def __init__(self, seed: int, enter: Callable[[Machine], None] = lambda machine: None) -> None:
        self.machines: list[Machine] = []
        self.agents: list[Agent] = []
        self.bodies: list[Callable[[], None]] = []
        self._enter = enter
        self._random = random.Random(seed)
        self._ended = threading.Semaphore(0)
        self._bits = itertools.count()
        self.errors: list[BaseException] = []

    def new_bit(self) -> int:
        """A bit that nothing in this cluster has (tests/gluon_memory.py)."""
        return 1 << next(self._bits)

    def run(self) -> None:
        """Run all partitions to their ends; raises what the first one to fail raises."""

        def run(agent: Agent, body: Callable[[], None]) -> None:
            agent.turn.acquire()
            try:
                body()
                agent.check_end()
            except Ended:
                pass
            except BaseException as error:
                self.errors.append(error)
            agent.done = True
            self._next()

        for pair in zip(self.agents, self.bodies, strict=True):
            threading.Thread(target=run, args=pair, daemon=True).start()
        self._next()
        self._ended.acquire()
        if self.errors:
            raise self.errors[0]
        for machine in self.machines:
            machine.check_end()

    def pause(self, agent: Agent) -> None:
        """Let another partition run, or this one go on, as the dice fall. Raises Ended when one has failed."""
        # From one thread to the next, since each change of threads costs as much as all that a kernel does between two.
        if self._next(agent) is not agent:
            agent.turn.acquire()
        if self.errors:
            raise Ended

    def _next(self, paused: Agent | None = None) -> Agent | None:
        """Let one of those that can go on do so; the one that is `paused` needs no waking."""
        alive = [agent for agent in self.agents if not agent.done]
        if not alive:
            self._ended.release()
            return None
        able = [agent for agent in alive if agent.ready()]
        if not able and not self.errors:
            self.errors.append(AssertionError(DEADLOCK))
        agent = self._random.choice(alive if self.errors else able)
        agent.machine.running = agent
        self._enter(agent.machine)
        if agent is not paused:
            agent.turn.release()
        return agent
