"""Nodes: the workers of a Dask cluster, which come and go; needs the optional extra `cluster`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from genkern.errors import InputError, one_line
from genkern.farm.remote.address import Address
from genkern.farm.remote.slurm_job import SlurmJob

# The resource of workers that measure: `dask worker --resources GPU=1`.
GPU = "GPU"
_WAIT_S = 60.0
_LOOK_S = 1.0
_NO_DASK = "--cluster needs Dask, here and on every node: pip install '.[cluster]' in genkern's checkout"


@dataclass(frozen=True)
class Node:
    """A worker, by its address: how many units it does at a time, on how many GPUs it measures, what it said of itself.

    `why` it cannot compile for this run; "" where it can.
    """

    address: str
    threads: int
    gpus: int
    said: Mapping[str, Any]
    why: str = ""


class Nodes:
    """Connected to a cluster; a thread looks every second who is there, and asks each newcomer `greeting`.

    That is a function that runs there, and its argument. It answers with a JSON object, whose `why` says why the node
    is of no use, if it is.
    """

    def __init__(
        self,
        address: Address,
        say: Callable[[str], object],
        greeting: tuple[Callable[[str], str], str],
        environment: Mapping[str, str],
    ) -> None:
        """Connect, or start processes here with this environment, or a scheduler and a job of Slurm's.

        Raises InputError where no node answers.
        """
        try:
            from distributed import Client, LocalCluster
            from distributed.security import Security

            from genkern.farm.pool import children_ignore_interrupts
        except ImportError:
            raise InputError(_NO_DASK) from None
        # The one names every key that was on a lost worker, which are done again; the others say that a peer went.
        for name in ("distributed.scheduler", "distributed.core", "distributed.nanny", "distributed.batched"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._say, self._greeting = say, greeting
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._foreign: dict[str, str] = {}
        self._cluster: Any = None
        self._job: SlurmJob | None = None
        self._ended = threading.Event()
        # Called after each look.
        self.on_look: Callable[[], object] = lambda: None
        try:
            if address.workers:
                own = {"n_workers": address.workers, "threads_per_worker": 1, "processes": True}
                quiet = {"dashboard_address": ":0", "silence_logs": logging.ERROR}
                with children_ignore_interrupts():
                    self._cluster = LocalCluster(**own, **quiet, env=dict(environment))
            elif address.script:
                self._cluster = _own_scheduler(LocalCluster, Security())
            # Certificates are those of Dask's own configuration.
            where = self._cluster or address.scheduler
            if self._cluster is None:
                asyncio.run(_reach(address.scheduler, Security()))
            self.client = Client(where, timeout=_WAIT_S, set_as_default=False)
            self.scheduler: str = self.client.scheduler.address
            if address.script:
                self._job = SlurmJob(address.script, self.scheduler)
                say(f"cluster: job {self._job.number} waits for nodes")
            self._wait_for_first(address)
        except (OSError, TimeoutError, ValueError, TypeError) as error:
            self.end()
            if isinstance(error, InputError):
                raise
            raise InputError(f"--cluster {address.text}: no nodes answer ({one_line(error)})") from None
        except BaseException:
            self.end()
            raise
        say(f"cluster: {self.client.dashboard_link}")
        self._look()
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def there(self) -> list[Node]:
        """Those that were there at the last look, also those of no use."""
        with self._lock:
            return list(self._nodes.values())

    @property
    def able(self) -> list[Node]:
        """Those that compile: nodes that measure do only where there are no others, since it disturbs."""
        usable = [node for node in self.there if not node.why]
        return [node for node in usable if not node.gpus] or usable

    @property
    def expects_more(self) -> bool:
        """Whether nodes may still be in a queue."""
        return self._job is not None and self._job.is_alive()

    def leave_out(self, node: str, why: str) -> bool:
        """This node, by its address, is of no use; whether that is news."""
        with self._lock:
            if node in self._foreign:
                return False
            self._foreign[node] = why
            if (there := self._nodes.get(node)) is not None:
                self._nodes[node] = Node(there.address, there.threads, there.gpus, there.said, why)
        self._say(f"note: {node} is left out: {why}")
        return True

    def end(self) -> None:
        """Let the nodes go; those that were started for this end."""
        self._ended.set()
        with contextlib.suppress(Exception):
            self.client.close()
        if self._job is not None:
            self._job.cancel()
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close()

    def _wait_for_first(self, address: Address) -> None:
        """A queue may be long: so there is no end to that wait but the job's."""
        if self._job is None:
            self.client.wait_for_workers(1, timeout=_WAIT_S)
            return
        while not self._workers():
            if not self._job.is_alive() and not self._workers():
                raise InputError(
                    f"--cluster {address.text}: job {self._job.number} has ended without a node; see its log"
                )
            time.sleep(_LOOK_S)

    def _workers(self) -> dict[str, Any]:
        # Client.scheduler_info may hand out what a thread of Dask's has put into its place, which has no workers.
        said: dict[str, Any] = self.client.sync(self.client.scheduler.identity, n_workers=-1)
        found: dict[str, Any] = said["workers"]
        return found

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            # A scheduler that is gone is told to whoever submits.
            with contextlib.suppress(Exception):
                self._look()
                self.on_look()

    def _look(self) -> None:
        workers = self._workers()
        # Busy or frozen ones answer late: they are asked again at the next look.
        new = [address for address in workers if address not in self._nodes]
        function, argument = self._greeting
        answers = self.client.run(function, argument, workers=new, on_error="return") if new else {}
        for address, answer in answers.items():
            said = _said(answer)
            if why := str(said.get("why", "")):
                self.leave_out(str(address), why)
            info = workers[address]
            gpus = int(info.get("resources", {}).get(GPU, 0))
            with self._lock:
                why = self._foreign.get(address, "")
                self._nodes[address] = Node(str(address), int(info["nthreads"]), gpus, said, why)
        with self._lock:
            self._nodes = {address: node for address, node in self._nodes.items() if address in workers}


def _said(answer: object) -> dict[str, Any]:
    """What a node said of itself; where it could not, why."""
    if not isinstance(answer, str):
        return {"why": one_line(answer) if isinstance(answer, BaseException) else "it does not know genkern"}
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    return said if isinstance(said, dict) else {"why": "it has another genkern"}


async def _reach(scheduler: str, security: Any) -> None:
    """Raises OSError or TypeError where no scheduler answers, or it wants another certificate.

    A client that cannot connect says so too, and waits for itself when it goes.
    """
    import dask
    from distributed.comm import connect

    if dask.config.get("distributed.client.security-loader", None) is None:
        comm = await connect(scheduler, timeout=_WAIT_S, **security.get_connection_args("client"))
        await comm.close()


def _own_scheduler(cluster: Any, security: Any) -> Any:
    """A scheduler in this process for workers on other machines; encrypted where Dask's configuration says how."""
    from distributed.utils import get_ip

    tls = bool(security.get_tls_config_for_role("scheduler").get("cert"))
    return cluster(
        n_workers=0,
        host=get_ip(),
        protocol="tls://" if tls else "tcp://",
        security=security,
        dashboard_address=":0",
    )
