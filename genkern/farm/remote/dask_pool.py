"""DaskPool: the workers of a Dask cluster in the place of processes of this machine; the optional extra `cluster`."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from genkern.errors import GenkernError, InputError, one_line
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.remote.address import Address
from genkern.farm.remote.node import greet, made_here
from genkern.farm.remote.nodes import Nodes
from genkern.farm.remote.unit import Foreign, Shared, There, Unit, read_answer
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Binary, Outcome

# A unit comes to a node that is known not to compile where all others were lost: so often it is tried again.
_TRIES = 2
# It is withdrawn where all nodes that might do it are lost: Dask counts those that died of it only while it has it.
_LOSSES = 3
# Nodes that were lost may come back within so many looks, of a second each.
_LOOKS_WITHOUT_NODES = 180
# An answer whose node has gone is waited for half a minute, until Dask has the unit done again.
_ANSWERS_AT_A_TIME = 16


@dataclass
class _Asked:
    """A unit with the cluster: whom it is for, how often it is tried again, where it may be made (None: anywhere), and
    how often all nodes that might do it were lost.
    """

    job: CompileJob
    unit: Unit
    future: Future[Binary | Failure]
    tries: int
    able: frozenset[str] | None = None
    losses: int = 0


class DaskPool:
    """Has the nodes of a cluster compile and stores what they made in `cache`, unless they see that folder too.

    A node that has another Triton than the run is left out, and `say` is told its name. What was under way on a node
    that is lost is done by another; a unit that nodes were lost with again and again fails, as from outside.
    """

    def __init__(self, address: str, cache: BinaryCache, made_for: MadeFor, say: Callable[[str], object]) -> None:
        """Nothing is started yet. Raises InputError for what is no address."""
        self._address = Address.read(address)
        self._cache, self._made_for, self._say = cache, made_for, say
        self._nodes: Nodes | None = None
        self._lock = threading.Lock()
        self._under_way: dict[Any, _Asked] = {}
        # What is to be asked for when there is a node.
        self._waiting: list[_Asked] = []
        self._texts: dict[str, str] = {}
        self._shared: Shared | None = None
        self._probe: Path | None = None
        self._looks_without = 0
        self._answering = ThreadPoolExecutor(_ANSWERS_AT_A_TIME, thread_name_prefix="genkern-answers")

    def connect(self) -> Nodes:
        """Connect, unless that is done; threads begin with it. Raises InputError where no node can compile."""
        if self._nodes is None:
            self._offer_folder()
            # Processes that are started here have the same cache, and what each would have done by itself they share.
            here = {"GENKERN_CACHE_DIR": str(self._cache.folder.resolve().parent)}
            nodes = self._nodes = Nodes(self._address, self._say, (greet, json.dumps(asdict(self._made_for))), here)
            if not nodes.able:
                raise InputError(_nobody(nodes))
            nodes.on_look = self._looked
        return self._nodes

    @property
    def size(self) -> int:
        """How many units the cluster does at a time, as far as that is known."""
        if self._nodes is None:
            return self._address.workers or 1
        return max(1, sum(node.threads for node in self._nodes.able))

    def begin(self, job: CompileJob) -> Future[Binary | Failure]:
        """Have a node do the job. CuTe kernels, whose texts lie in files, are made by this machine."""
        if job.spec.language == "cute":
            from genkern.farm.pool import begin

            return begin(job, 2)
        future: Future[Binary | Failure] = Future()
        self._submit(_Asked(job, self._unit(job), future, _TRIES))
        return future

    def end(self) -> None:
        """Withdraw what is under way, and let the nodes go."""
        with self._lock:
            left = list(self._under_way)
            self._under_way.clear()
            self._waiting.clear()
        self._answering.shutdown(wait=False, cancel_futures=True)
        if self._nodes is not None:
            with contextlib.suppress(Exception):
                self._nodes.client.cancel(left)
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
        if job.module_path not in self._texts:
            self._texts[job.module_path] = Path(job.module_path).read_text(encoding="utf-8")
        return Unit.of(job, self._texts[job.module_path], self._made_for, self._shared)

    def _submit(self, asked: _Asked) -> None:
        try:
            nodes = self.connect()
            where = self._where(nodes, asked)
            if where is None:
                with self._lock:
                    self._waiting.append(asked)
                return
            with self._lock:
                pending = nodes.client.submit(made_here, asked.unit.data(), pure=False, **where)
                self._under_way[pending] = asked
        except Exception as error:
            asked.future.set_exception(error if isinstance(error, GenkernError) else _lost_cluster(error))
            return
        pending.add_done_callback(self._answers_soon)

    def _where(self, nodes: Nodes, asked: _Asked) -> dict[str, Any] | None:
        """Where this unit may be made, as Dask has it: nothing is said where all nodes are alike, which it is fastest
        with. None where there is no node now.
        """
        able, there = nodes.able, nodes.there
        if not able:
            return None
        asked.able = None if len(able) == len(there) else frozenset(node.address for node in able)
        return {} if asked.able is None else {"workers": sorted(asked.able)}

    def _looked(self) -> None:
        """Units of which all the nodes that may make them are gone are asked of others: with Dask alone they would wait
        for ever, as a node that is started anew has another address.
        """
        nodes = self._nodes
        assert nodes is not None
        if self._probe is not None:
            # Old ones are removed by whoever uses the cache.
            with contextlib.suppress(OSError):
                os.utime(self._probe)
        there = {node.address for node in nodes.there}
        able = bool(nodes.able)
        self._looks_without = 0 if able else self._looks_without + 1
        if not able and self._looks_without <= _LOOKS_WITHOUT_NODES:
            return
        with self._lock:
            again, self._waiting = self._waiting, []
            lost = [
                pending
                for pending, asked in self._under_way.items()
                if not able or (asked.able is not None and asked.able.isdisjoint(there))
            ]
            for pending in lost:
                again.append(asked := self._under_way.pop(pending))
                asked.losses += 1
        for pending in lost:
            # Whatever becomes of it: nobody waits for it any more, and what it was for is asked of others.
            with contextlib.suppress(Exception):
                pending.cancel()
        for asked in again:
            if not able:
                asked.future.set_exception(InputError(_nobody(nodes)))
            elif asked.losses > _LOSSES:
                asked.future.set_result(_deadly(asked.job.key))
            else:
                self._submit(asked)

    def _answers_soon(self, done: Any) -> None:
        # Dask has one thread for this, in which all others would wait for the answer of a node that has gone.
        with contextlib.suppress(RuntimeError):
            self._answering.submit(self._answered, done)

    def _answered(self, done: Any) -> None:
        with self._lock:
            if done not in self._under_way:
                return
        answer: Any = None
        error: Exception | None = None
        try:
            # Where its node has gone meanwhile this waits until it is made again, or withdrawn.
            answer = done.result()
        except Exception as failed:
            error = failed
        with self._lock:
            # Withdrawn, and asked of others.
            if (asked := self._under_way.pop(done, None)) is None:
                return
        key, future = asked.job.key, asked.future
        try:
            if error is not None:
                raise error
            result = read_answer(answer)
            if isinstance(result, Foreign):
                asked.tries -= self._nodes is None or not self._nodes.leave_out(result.node, result.why)
                if asked.tries:
                    self._submit(asked)
                else:
                    future.set_result(_deadly(key))
            elif isinstance(result, There):
                if (found := self._cache.get(key)) is not None:
                    future.set_result(found)
                elif (shared := asked.unit.shared) is not None and not shared.whole:
                    asked.unit = replace(asked.unit, shared=replace(shared, whole=True))
                    self._submit(asked)
                else:
                    future.set_result(_damaged(key))
            elif isinstance(result, Failure):
                future.set_result(result)
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(self._cache.take_over(key, result) or _damaged(key))
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                future.set_result(_deadly(key))
            else:
                future.set_exception(error if isinstance(error, GenkernError) else _lost_cluster(error))


def _nobody(nodes: Nodes) -> str:
    """Why no node can compile, by the example of one."""
    node = next((node for node in nodes.there if node.why), None)
    return f"--cluster: no node can compile: {f'{node.address}: {node.why}' if node else 'none is there'}"


def _deadly(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "nodes died with it again and again", from_outside=True)


def _damaged(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "its binary came back damaged", from_outside=True)


def _lost_cluster(error: BaseException) -> GenkernError:
    return InputError(f"--cluster: the cluster is gone, or cannot run genkern ({one_line(error)})")
