"""DaskPool: the workers of a Dask cluster in the place of processes of this machine; the optional extra `cluster`."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

from genkern.errors import GenkernError, InputError, one_line
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.remote.node import made_here, mismatch_here
from genkern.farm.remote.unit import Foreign, Unit, read_answer
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Binary, Outcome

_ADDRESS = re.compile(
    r"dask://(?P<tcp>[^/\s]+:[0-9]+)|(?P<whole>(tcp|tls|ucx|wss?)://\S+)|local:(?P<workers>[1-9][0-9]{0,3})"
)
_WAIT_S = 60.0
_LOOK_AGAIN_S = 0.5
# A unit comes to a node that is known not to compile where all others were lost: so often it is tried again.
_TRIES = 2
_NO_DASK = "--cluster needs Dask, here and on every node: pip install 'genkern[cluster]'"


def require_address(text: str) -> str:
    """The address as it is written. Raises InputError for what is none."""
    if _ADDRESS.fullmatch(text) is None:
        raise InputError(f"--cluster {text[:60]}: give local:N, dask://HOST:PORT or tls://HOST:PORT")
    return text


class DaskPool:
    """Has the nodes of a cluster compile, each with its own cache, and stores what they made in `cache`.

    A node that has another Triton than the run is left out, and `say` is told its name. What was under way on a node
    that is lost is done by another; a unit that nodes were lost with again and again fails, as from outside.
    """

    def __init__(self, address: str, cache: BinaryCache, made_for: MadeFor, say: Callable[[str], object]) -> None:
        """Connect, or start processes here (`local:N`). Raises InputError where no node can compile."""
        try:
            from distributed import Client, LocalCluster
        except ImportError:
            raise InputError(_NO_DASK) from None
        match = _ADDRESS.fullmatch(require_address(address))
        assert match is not None
        # It names every key that was on a lost worker, which are done again.
        logging.getLogger("distributed.scheduler").setLevel(logging.ERROR)
        self._cache, self._made_for, self._say = cache, made_for, say
        self._lock = threading.Lock()
        self._foreign: dict[str, str] = {}
        self._under_way: set[Any] = set()
        self._texts: dict[str, str] = {}
        self._cluster = None
        try:
            if workers := match["workers"]:
                # Their cache is this one.
                shared = {"GENKERN_CACHE_DIR": str(cache.folder.resolve().parent)}
                self._cluster = LocalCluster(
                    n_workers=int(workers), threads_per_worker=1, processes=True, dashboard_address=":0", env=shared
                )
            where = self._cluster or (f"tcp://{match['tcp']}" if match["tcp"] else match["whole"])
            self._client = Client(where, timeout=_WAIT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=_WAIT_S)
        except (OSError, TimeoutError) as error:
            raise InputError(f"--cluster {address}: no nodes answer ({one_line(error)})") from None
        say(f"cluster: {self._client.dashboard_link}")
        # Nodes that come later say so of their first unit.
        made_for_text = json.dumps(asdict(made_for))
        for node, why in self._client.run(mismatch_here, made_for_text, on_error="return").items():
            if why:
                self._leave_out(Foreign(str(node), why if isinstance(why, str) else one_line(why)))
        self._able()

    @property
    def size(self) -> int:
        """How many units the cluster does at a time."""
        threads: dict[str, int] = self._client.nthreads()
        return max(1, sum(count for node, count in threads.items() if node not in self._foreign))

    def begin(self, job: CompileJob) -> Future[Binary | Failure]:
        """Have a node do the job. CuTe kernels, whose texts lie in files, are made by this machine."""
        if job.spec.language == "cute":
            from genkern.farm.pool import begin

            return begin(job, 2)
        future: Future[Binary | Failure] = Future()
        self._submit(job, self._unit(job).text(), future)
        return future

    def end(self) -> None:
        """Withdraw what is under way, and let the nodes go."""
        with contextlib.suppress(Exception):
            self._client.cancel(list(self._under_way))
        with contextlib.suppress(Exception):
            self._client.close()
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close()

    def _unit(self, job: CompileJob) -> Unit:
        if job.module_path not in self._texts:
            self._texts[job.module_path] = Path(job.module_path).read_text(encoding="utf-8")
        return Unit.of(job, self._texts[job.module_path], self._made_for)

    def _submit(self, job: CompileJob, text: str, future: Future[Binary | Failure], tries: int = _TRIES) -> None:
        try:
            # A node that is started anew has another address: a unit that only those of now might do would wait for
            # ever where all of them are lost.
            workers = {"workers": self._able(_WAIT_S), "allow_other_workers": True} if self._foreign else {}
            asked = self._client.submit(made_here, text, pure=False, **workers)
        except Exception as error:
            future.set_exception(error if isinstance(error, GenkernError) else _lost_cluster(error))
            return
        with self._lock:
            self._under_way.add(asked)
        asked.add_done_callback(lambda done: self._answered(job, text, future, done, tries))

    def _able(self, wait_s: float = 0.0) -> list[str]:
        """The nodes that are there and can compile. Raises InputError where there is none in so many seconds."""
        until_s = time.monotonic() + wait_s
        while True:
            there = list(self._client.scheduler_info(n_workers=-1)["workers"])
            if able := [node for node in there if node not in self._foreign]:
                return able
            if time.monotonic() >= until_s:
                break
            time.sleep(_LOOK_AGAIN_S)
        raise InputError(f"--cluster: no node can compile: {next(iter(self._foreign.values()))}")

    def _answered(self, job: CompileJob, text: str, future: Future[Binary | Failure], done: Any, tries: int) -> None:
        with self._lock:
            self._under_way.discard(done)
        try:
            result = read_answer(done.result())
            if isinstance(result, Foreign):
                tries -= not self._leave_out(result)
                if tries:
                    self._submit(job, text, future, tries)
                else:
                    future.set_result(_deadly(job.key))
            elif isinstance(result, Failure):
                future.set_result(result)
            elif isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(self._cache.take_over(job.key, result) or _damaged(job.key))
        except Exception as error:
            if type(error).__name__ == "KilledWorker":
                future.set_result(_deadly(job.key))
            else:
                future.set_exception(error if isinstance(error, GenkernError) else _lost_cluster(error))

    def _leave_out(self, node: Foreign) -> bool:
        """Ask this node no more; whether that is news."""
        with self._lock:
            known = node.node in self._foreign
            self._foreign[node.node] = f"{node.node}: {node.why}"
        if not known:
            self._say(f"note: {node.node} does not compile: {node.why}")
        return not known


def _deadly(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "nodes died with it again and again", from_outside=True)


def _damaged(key: str) -> Failure:
    return Failure(key, Outcome.COMPILE_FAILED, "its binary came back damaged", from_outside=True)


def _lost_cluster(error: BaseException) -> GenkernError:
    return InputError(f"--cluster: the cluster is gone, or cannot run genkern ({one_line(error)})")
