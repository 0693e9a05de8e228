"""`DaskPool`: compiles on the workers of a Dask cluster instead of this machine; needs the optional extra `cluster`."""

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

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.address import Address
from genkern.compile.remote.ledger import Ledger, Made, RetryUnit, Task, WantedUnit
from genkern.compile.remote.node import compile_units, greet
from genkern.compile.remote.nodes import Nodes
from genkern.compile.remote.unit import (
    AlreadyInSharedCache,
    CompileUnit,
    IncompatibleNode,
    NotBegun,
    Result,
    SharedCache,
    read_answer,
    task_of,
)
from genkern.errors import GenkernError, InputError, one_line
from genkern.gemm.records import Binary, Outcome

_LOOK_S = 1.0
# A cluster that has refused every task for this long, although it lists nodes, is given up.
_REFUSES_S = 60.0
# Tasks per message to the scheduler. With a module text each, a message has 1.6 MB; Dask warns at 10 MB.
_TASKS_AT_A_TIME = 128
# Module texts that are cached: more than the sizes that are under way at a time.
_TEXTS = 64
_END_S = 10.0
_RUN_ENDED = "--cluster: the run has ended"


class DaskPool:
    """Compiles jobs on the nodes of a cluster, and stores the binaries in `cache` unless the nodes share that folder.

    A node with another release of Triton than the run's is left out, and `say` is called with a line that names it.
    Units that were under way on a lost node are compiled by another node; a unit with which nodes are lost repeatedly
    ends as a Failure `from_outside`.

    One thread sends tasks to the cluster and receives answers; `Ledger` has the state of each unit. Orders that arrive
    while the thread is busy go to the scheduler in one message.
    """

    def __init__(self, address: str, cache: BinaryCache, made_for: MadeFor, say: Callable[[str], object]) -> None:
        """Parse the address; nothing is started yet. Raises InputError if the address is invalid."""
        self._address = Address.read(address)
        self._cache, self._made_for, self._say = cache, made_for, say
        self._connecting = threading.Lock()
        self._nodes: Nodes | None = None
        self._ledger = Ledger()
        # Units that are wanted, and results of tasks: answers and exceptions. None wakes the thread to check whether to
        # end.
        self._heard: queue.SimpleQueue[list[WantedUnit] | tuple[int, bytes | BaseException] | None] = (
            queue.SimpleQueue()
        )
        self._pending: dict[int, Any] = {}
        self._text = functools.lru_cache(_TEXTS)(_text_of)
        self._shared: SharedCache | None = None
        self._probe: Path | None = None
        self._refuses_since_s: float | None = None
        self._looked_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="genkern-dask", daemon=True)

    def connect(self) -> Nodes:
        """Connect unless that is done, and start the thread. Raises InputError if no node can compile."""
        with self._connecting:
            if self._nodes is None:
                self._offer_folder()
                # Processes that are started here use the same cache, so that they share their work too.
                here = {"GENKERN_CACHE_DIR": str(self._cache.folder.resolve().parent)}
                self._nodes = Nodes(self._address, self._say, (greet, json.dumps(asdict(self._made_for))), here)
            if self._thread.ident is None:
                if not self._nodes.able:
                    raise InputError(_nobody(self._nodes))
                self._thread.start()
            return self._nodes

    @property
    def size(self) -> int:
        """The number of units that the cluster does at a time, as far as that is known."""
        if self._nodes is None:
            return self._address.workers or 1
        return max(1, self._nodes.threads)

    def begin(self, jobs: Sequence[CompileJob]) -> list[Future[Binary | Failure]]:
        """Have a node do these jobs, one after another; after some seconds the rest goes to other nodes.

        CuTe kernels are compiled by this machine, since their texts lie in files.
        """
        futures: list[Future[Binary | Failure]] = []
        together: list[WantedUnit] = []
        for job in jobs:
            if job.spec.language == "cute":
                from genkern.compile.pool import submit

                futures.append(submit(job, 2))
                continue
            future: Future[Binary | Failure] = Future()
            futures.append(future)
            try:
                self.connect()
                together.append(WantedUnit(self._unit(job), _teller(future)))
            except (GenkernError, OSError) as error:
                future.set_exception(error)
        if together:
            self._heard.put(together)
            if self._ended.is_set():
                # The thread may have ended, so that nothing would take these units from the queue.
                self._thread.join(_END_S)
                self._give_up(InputError(_RUN_ENDED))
        return futures

    def end(self) -> None:
        """Withdraw all tasks, and disconnect from the nodes."""
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
        """Create a folder of a unique name in the cache. A node that sees the folder shares the cache, which an equal
        path alone does not prove."""
        folder = self._cache.folder.resolve()
        # If this user cannot write to the cache, it is not shared with nodes.
        with contextlib.suppress(OSError):
            self._probe = self._cache.unborn(f"shared-{secrets.token_hex(8)}")
            self._shared = SharedCache(str(folder), str(self._probe.relative_to(self._cache.folder)))

    def _unit(self, job: CompileJob) -> CompileUnit:
        return CompileUnit.of(job, self._text(job.module_path), self._made_for, self._shared)

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
                # Without this, the callers would wait for ever.
                self._give_up(error if isinstance(error, GenkernError) else _lost_cluster(error))
        self._give_up(InputError(_RUN_ENDED))

    def _hear(self) -> None:
        """Wait for news for up to `_LOOK_S` seconds, then process everything that has arrived."""
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
            # Users of the cache remove temporary folders that are old.
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
            # Dask is fastest without a restriction to nodes, so none is given if all nodes can compile.
            able = these[0].able
            where: dict[str, Any] = {} if able is None else {"workers": sorted(able)}
            try:
                data = [task_of([wanted.unit for wanted in task.wanted]) for task in these]
                pending = nodes.client.map(compile_units, data, pure=False, **where)
            except Exception as error:
                self._ledger.not_asked(tasks[start:])
                nodes.tell_once("a task is not taken", error)
                self._refuses_since_s = self._refuses_since_s or now_s
                if now_s - self._refuses_since_s > _REFUSES_S:
                    raise
                # A wait that ends at once when the pool is ended.
                self._ended.wait(_LOOK_S)
                return
            self._refuses_since_s = None
            for task, future in zip(these, pending, strict=True):
                self._pending[task.number] = future
                nodes.client.loop.add_callback(self._answer, task.number, future)

    async def _answer(self, number: int, future: Any) -> None:
        """Queue the result of a task. Runs in Dask's event loop, where all tasks are awaited at the same time."""
        said: bytes | BaseException
        try:
            # If its node is lost, this waits until the task is done again or withdrawn.
            said = await future
        except (Exception, asyncio.CancelledError) as error:
            said = error
        self._heard.put((number, said))

    def _answered(self, number: int, said: bytes | BaseException) -> None:
        self._pending.pop(number, None)
        now_s = time.monotonic()
        if (task := self._ledger.task(number)) is None:
            # The task was withdrawn, and its units were given to other nodes.
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
            # The scheduler has forgotten the task: it was restarted, or the connection was lost.
            self._ledger.lost(number, now_s)
        else:
            self._ledger.broken(number, _lost_cluster(said), now_s)

    def _made_of(self, task: Task, results: Sequence[Result]) -> list[Made | RetryUnit]:
        if len(results) != len(task.wanted):
            raise ValueError(f"{len(results)} answers for {len(task.wanted)} units")
        begun = not isinstance(results[0], NotBegun)
        return [self._made(each.unit, result, begun) for each, result in zip(task.wanted, results, strict=True)]

    def _made(self, unit: CompileUnit, result: Result, begun: bool) -> Made | RetryUnit:
        """Return the result of a unit, or an `RetryUnit` if the unit must be tried again. A binary is stored in the
        cache.

        `begun`: whether the node has compiled any unit of the task.
        """
        if isinstance(result, IncompatibleNode):
            news = self._nodes is not None and self._nodes.leave_out(result.node, result.why)
            return RetryUnit(unit, counts=not news)
        if isinstance(result, NotBegun):
            return RetryUnit(unit, counts=not begun)
        if isinstance(result, AlreadyInSharedCache):
            if (found := self._cache.get(unit.key)) is not None:
                return found
            if (shared := unit.shared) is not None and not shared.whole:
                return RetryUnit(replace(unit, shared=replace(shared, whole=True)), counts=False)
            return _damaged(unit.key)
        if isinstance(result, (Failure, Exception)):
            return result
        return self._cache.take_over(unit.key, result) or _damaged(unit.key)

    def _give_up(self, error: Exception) -> None:
        """End all units with `error`."""
        with contextlib.suppress(queue.Empty):
            while True:
                if isinstance(what := self._heard.get_nowait(), list):
                    self._ledger.want(what)
        self._withdraw(self._ledger.give_up(error))

    def _withdraw(self, numbers: Sequence[int]) -> None:
        futures = [self._pending.pop(number) for number in numbers if number in self._pending]
        if futures and self._nodes is not None:
            # The tasks' results no longer matter.
            try:
                self._nodes.client.cancel(futures)
            except Exception as error:
                self._nodes.tell_once("tasks are not withdrawn", error)


def _text_of(module_path: str) -> str:
    return Path(module_path).read_text(encoding="utf-8")


def _teller(future: Future[Binary | Failure]) -> Callable[[Made], object]:
    return lambda made: future.set_exception(made) if isinstance(made, Exception) else future.set_result(made)


def _nobody(nodes: Nodes) -> str:
    """Return the message that no node can compile, with the reason of one node."""
    node = next((node for node in nodes.there if node.why), None)
    return f"--cluster: no node can compile: {f'{node.address}: {node.why}' if node else 'none is there'}"


def _damaged(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "its binary came back damaged", from_outside=True)


def _lost_cluster(error: BaseException) -> GenkernError:
    return InputError(f"--cluster: the cluster is lost, or cannot run genkern ({one_line(error)})")
