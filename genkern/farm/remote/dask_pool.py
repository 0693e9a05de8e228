"""DaskPool: the workers of a Dask cluster in the place of processes of this machine; the optional extra `cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from genkern.errors import GenkernError, InputError, one_line
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.remote.address import Address
from genkern.farm.remote.ledger import Again, Ledger, Made, Task, Wanted
from genkern.farm.remote.node import greet, made_here
from genkern.farm.remote.nodes import Nodes
from genkern.farm.remote.unit import Foreign, NotBegun, Result, Shared, There, Unit, read_answer, task_of
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Binary, Outcome

_LOOK_S = 1.0
# Dask takes nothing for so long, though its nodes are said to be there.
_REFUSES_S = 60.0
# Tasks in one message to the scheduler: 1.6 MB with a text for each. Dask complains of 10 MB.
_TASKS_AT_A_TIME = 128
# Modules whose text is kept: of more sizes than a run has under way, of which there may be any number in all.
_TEXTS = 64
_END_S = 10.0
_RUN_ENDED = "--cluster: the run has ended"


class DaskPool:
    """Has the nodes of a cluster compile and stores what they made in `cache`, unless they see that folder too.

    A node that has another Triton than the run is left out, and `say` is told its name. What was under way on a node
    that is lost is done by another; a unit that nodes were lost with again and again fails, as from outside.
    A thread of its own asks the cluster and hears it (`Ledger` says what becomes of each unit); while it is busy what
    comes gathers, and goes to the scheduler in one message.
    """

    def __init__(self, address: str, cache: BinaryCache, made_for: MadeFor, say: Callable[[str], object]) -> None:
        """Nothing is started yet. Raises InputError for what is no address."""
        self._address = Address.read(address)
        self._cache, self._made_for, self._say = cache, made_for, say
        self._connecting = threading.Lock()
        self._nodes: Nodes | None = None
        self._ledger = Ledger()
        # Units that are wanted, and what was heard of tasks: answers, and what ended them. None: look whether to end.
        self._heard: queue.SimpleQueue[list[Wanted] | tuple[int, bytes | BaseException] | None] = queue.SimpleQueue()
        self._pending: dict[int, Any] = {}
        self._text = functools.lru_cache(_TEXTS)(_text_of)
        self._shared: Shared | None = None
        self._probe: Path | None = None
        self._refuses_since_s: float | None = None
        self._looked_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="genkern-dask", daemon=True)

    def connect(self) -> Nodes:
        """Connect, unless that is done; threads begin with it. Raises InputError where no node can compile."""
        with self._connecting:
            if self._nodes is None:
                self._offer_folder()
                # Processes that are started here have the same cache, and what each would have done by itself they
                # share.
                here = {"GENKERN_CACHE_DIR": str(self._cache.folder.resolve().parent)}
                self._nodes = Nodes(self._address, self._say, (greet, json.dumps(asdict(self._made_for))), here)
            if self._thread.ident is None:
                if not self._nodes.able:
                    raise InputError(_nobody(self._nodes))
                self._thread.start()
            return self._nodes

    @property
    def size(self) -> int:
        """How many units the cluster does at a time, as far as that is known."""
        if self._nodes is None:
            return self._address.workers or 1
        return max(1, self._nodes.threads)

    def begin(self, jobs: Sequence[CompileJob]) -> list[Future[Binary | Failure]]:
        """Have a node do these jobs, one after another; when it has been at it for some seconds, others do the rest.

        CuTe kernels, whose texts lie in files, are made by this machine.
        """
        futures: list[Future[Binary | Failure]] = []
        together: list[Wanted] = []
        for job in jobs:
            if job.spec.language == "cute":
                from genkern.farm.pool import begin

                futures.append(begin(job, 2))
                continue
            future: Future[Binary | Failure] = Future()
            futures.append(future)
            try:
                self.connect()
                together.append(Wanted(self._unit(job), _teller(future)))
            except (GenkernError, OSError) as error:
                future.set_exception(error)
        if together:
            self._heard.put(together)
            if self._ended.is_set():
                # Nobody may be there to hear it.
                self._thread.join(_END_S)
                self._give_up(InputError(_RUN_ENDED))
        return futures

    def end(self) -> None:
        """Withdraw what is under way, and let the nodes go."""
        self._ended.set()
        self._heard.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_END_S)
        if self._nodes is not None:
            self._nodes.end()
        if self._probe is not None:
            with contextlib.suppress(OSError):
                self._probe.rmdir()

    def _offer_folder(self) -> None:
        """Nodes that find a folder of this name in it see the same cache: a path by itself says nothing elsewhere."""
        folder = self._cache.folder.resolve()
        # A cache that only others write to is shared by nobody.
        with contextlib.suppress(OSError):
            self._probe = self._cache.unborn(f"shared-{secrets.token_hex(8)}")
            self._shared = Shared(str(folder), str(self._probe.relative_to(self._cache.folder)))

    def _unit(self, job: CompileJob) -> Unit:
        return Unit.of(job, self._text(job.module_path), self._made_for, self._shared)

    def _work(self) -> None:
        nodes = self._nodes
        assert nodes is not None
        while not self._ended.is_set():
            try:
                self._hear()
                if time.monotonic() - self._looked_s >= _LOOK_S:
                    self._look(nodes)
                self._ask(nodes)
            except Exception as error:
                # Nobody else would ever tell those who wait.
                self._give_up(error if isinstance(error, GenkernError) else _lost_cluster(error))
        self._give_up(InputError(_RUN_ENDED))

    def _hear(self) -> None:
        """Wait for a while, then take all that has come."""
        heard = []
        with contextlib.suppress(queue.Empty):
            heard.append(self._heard.get(timeout=_LOOK_S))
            while True:
                heard.append(self._heard.get_nowait())
        for what in heard:
            if isinstance(what, list):
                self._ledger.want(what)
            elif what is not None:
                self._answered(*what)

    def _look(self, nodes: Nodes) -> None:
        self._looked_s = now_s = time.monotonic()
        if self._probe is not None:
            # Old ones are removed by whoever uses the cache.
            with contextlib.suppress(OSError):
                os.utime(self._probe)
        nodes.check()
        able, there = nodes.able, nodes.there
        expects_more = not able and not self._ledger.is_empty and nodes.expects_more
        addresses = [node.address for node in able], [node.address for node in there]
        self._withdraw(self._ledger.looked(*addresses, now_s, _nobody(nodes), expects_more=expects_more))

    def _ask(self, nodes: Nodes) -> None:
        now_s = time.monotonic()
        addresses = [node.address for node in nodes.able], [node.address for node in nodes.there]
        tasks = self._ledger.ask(*addresses, now_s)
        for start in range(0, len(tasks), _TASKS_AT_A_TIME):
            these = tasks[start : start + _TASKS_AT_A_TIME]
            # Nothing is said where all nodes are alike, which Dask is fastest with.
            able = these[0].able
            where: dict[str, Any] = {} if able is None else {"workers": sorted(able)}
            try:
                data = [task_of([wanted.unit for wanted in task.wanted]) for task in these]
                pending = nodes.client.map(made_here, data, pure=False, **where)
            except Exception as error:
                self._ledger.not_asked(tasks[start:])
                nodes.tell_once("a task is not taken", error)
                self._refuses_since_s = self._refuses_since_s or now_s
                if now_s - self._refuses_since_s > _REFUSES_S:
                    raise
                # Others may have ended it meanwhile.
                self._ended.wait(_LOOK_S)
                return
            self._refuses_since_s = None
            for task, future in zip(these, pending, strict=True):
                self._pending[task.number] = future
                nodes.client.loop.add_callback(self._answer, task.number, future)

    async def _answer(self, number: int, future: Any) -> None:
        """Hand over what comes of a task; in Dask's thread, where all of them wait at the same time."""
        said: bytes | BaseException
        try:
            # Where its node has gone meanwhile this waits until it is made again, or withdrawn.
            said = await future
        except (Exception, asyncio.CancelledError) as error:
            said = error
        self._heard.put((number, said))

    def _answered(self, number: int, said: bytes | BaseException) -> None:
        self._pending.pop(number, None)
        now_s = time.monotonic()
        if (task := self._ledger.task(number)) is None:
            # Withdrawn, and asked of others.
            return
        if isinstance(said, bytes):
            try:
                answers = self._made_of(task, read_answer(said))
            except Exception as error:
                self._ledger.broken(number, error if isinstance(error, GenkernError) else _lost_cluster(error), now_s)
            else:
                self._ledger.answered(number, answers, now_s)
        elif type(said).__name__ == "KilledWorker":
            self._ledger.lost(number, now_s, killed=True)
        elif type(said).__name__.endswith("CancelledError"):
            # Its scheduler has forgotten it: it was started anew, or the connection was lost.
            self._ledger.lost(number, now_s)
        else:
            self._ledger.broken(number, _lost_cluster(said), now_s)

    def _made_of(self, task: Task, results: Sequence[Result]) -> list[Made | Again]:
        if len(results) != len(task.wanted):
            raise ValueError(f"{len(results)} answers for {len(task.wanted)} units")
        begun = not isinstance(results[0], NotBegun)
        return [self._made(each.unit, result, begun) for each, result in zip(task.wanted, results, strict=True)]

    def _made(self, unit: Unit, result: Result, begun: bool) -> Made | Again:
        """What came of a unit, in the cache if it is a binary; `begun`: whether its node has made any of its task."""
        if isinstance(result, Foreign):
            news = self._nodes is not None and self._nodes.leave_out(result.node, result.why)
            return Again(unit, counts=not news)
        if isinstance(result, NotBegun):
            return Again(unit, counts=not begun)
        if isinstance(result, There):
            if (found := self._cache.get(unit.key)) is not None:
                return found
            if (shared := unit.shared) is not None and not shared.whole:
                return Again(replace(unit, shared=replace(shared, whole=True)), counts=False)
            return _damaged(unit.key)
        if isinstance(result, (Failure, Exception)):
            return result
        return self._cache.take_over(unit.key, result) or _damaged(unit.key)

    def _give_up(self, error: Exception) -> None:
        """Nothing is waited for any more."""
        with contextlib.suppress(queue.Empty):
            while True:
                if isinstance(what := self._heard.get_nowait(), list):
                    self._ledger.want(what)
        self._withdraw(self._ledger.give_up(error))

    def _withdraw(self, numbers: Sequence[int]) -> None:
        futures = [self._pending.pop(number) for number in numbers if number in self._pending]
        if futures and self._nodes is not None:
            # Whatever becomes of them: nobody waits for them any more.
            try:
                self._nodes.client.cancel(futures)
            except Exception as error:
                self._nodes.tell_once("tasks are not withdrawn", error)


def _text_of(module_path: str) -> str:
    return Path(module_path).read_text(encoding="utf-8")


def _teller(future: Future[Binary | Failure]) -> Callable[[Made], object]:
    return lambda made: future.set_exception(made) if isinstance(made, Exception) else future.set_result(made)


def _nobody(nodes: Nodes) -> str:
    """Why no node can compile, by the example of one."""
    node = next((node for node in nodes.there if node.why), None)
    return f"--cluster: no node can compile: {f'{node.address}: {node.why}' if node else 'none is there'}"


def _damaged(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "its binary came back damaged", from_outside=True)


def _lost_cluster(error: BaseException) -> GenkernError:
    return InputError(f"--cluster: the cluster is gone, or cannot run genkern ({one_line(error)})")
