"""`Nodes`: the workers of a Dask cluster, which come and go; needs the optional extra `cluster`."""

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

from genkern.compile.remote.address import Address
from genkern.compile.remote.slurm_job import SlurmJob
from genkern.compile.remote.unit import PROTOCOL
from genkern.errors import InputError, one_line
from genkern.installation import pip_install

# The Dask resource of workers that measure: `dask worker --resources GPU=1`.
GPU = "GPU"
_WAIT_S = 60.0
_LOOK_S = 1.0
# A busy scheduler answers late; one that has not answered for `_SILENT_S` is lost.
_ANSWER_S = 30.0
_SILENT_S = 90.0
# A frozen node must not delay the others: it is greeted again later.
_GREETING_S = 5.0
_LATER_S = 30.0
_NO_DASK = f"--cluster needs Dask, here and on every node: {pip_install('cluster')}"


@dataclass(frozen=True)
class Node:
    """A worker of the cluster.

    address: its address
    threads: the number of units that it does at a time
    gpus: the number of GPUs on which it measures
    said: its description, as `greet` returns it
    why: why it cannot compile for this run; "" if it can
    """

    address: str
    threads: int
    gpus: int
    said: Mapping[str, Any]
    why: str = ""


class Nodes:
    """A connection to a cluster. A thread checks every second which workers are there, and greets each new one.

    `greeting` is a function that runs on the worker, and its argument. It returns a JSON object whose `why` is the
    reason why the worker cannot be used, if it cannot.
    """

    def __init__(
        self,
        address: Address,
        say: Callable[[str], object],
        greeting: tuple[Callable[[str], str], str],
        environment: Mapping[str, str],
    ) -> None:
        """Connect to a scheduler, or start processes here with this environment, or a scheduler and a Slurm job.

        Raises InputError if no node answers.
        """
        try:
            import distributed  # noqa: F401
        except ImportError:
            raise InputError(_NO_DASK) from None
        # "scheduler" logs every key of a lost worker, which is computed again; the others log lost connections with
        # tracebacks. genkern prints a line of its own.
        for name in ("scheduler", "core", "nanny", "batched", "client", "utils"):
            logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL)
        self._say, self._greeting = say, greeting
        self._lock = threading.Lock()
        self._nodes: dict[str, Node] = {}
        self._foreign: dict[str, str] = {}
        self._cluster: Any = None
        self._job: SlurmJob | None = None
        self._late: dict[str, float] = {}
        self._told: set[str] = set()
        self._answered_s = time.monotonic()
        self._ended = threading.Event()
        try:
            self._connect(address, environment)
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

    def _connect(self, address: Address, environment: Mapping[str, str]) -> None:
        """Start the processes, scheduler or Slurm job that the address names, connect, and wait for the first node.

        Raises Dask's exceptions.
        """
        from distributed import Client, LocalCluster
        from distributed.security import Security

        from genkern.compile.pool import children_ignore_interrupts, leave_current_folder_when_spawning

        if address.workers:
            leave_current_folder_when_spawning()
            own = {"n_workers": address.workers, "threads_per_worker": 1, "processes": True}
            quiet = {"dashboard_address": ":0", "silence_logs": logging.ERROR}
            with children_ignore_interrupts():
                self._cluster = LocalCluster(**own, **quiet, env=dict(environment))
        elif address.script:
            self._cluster = _own_scheduler(LocalCluster, Security())
        # Certificates come from Dask's own configuration.
        where = self._cluster or address.scheduler
        if self._cluster is None:
            asyncio.run(_reach(address.scheduler, Security()))
        self.client = Client(where, timeout=_WAIT_S, set_as_default=False)
        self.scheduler: str = self.client.scheduler.address
        if address.script:
            self._job = SlurmJob(address.script, self.scheduler)
            self._say(f"cluster: job {self._job.number} waits for nodes")
        self._wait_for_first(address)

    @property
    def there(self) -> list[Node]:
        """The workers at the last check, including those that cannot be used."""
        with self._lock:
            return list(self._nodes.values())

    @property
    def able(self) -> list[Node]:
        """The workers that compile. Workers that measure compile only if there are no others, since it disturbs
        timings."""
        usable = [node for node in self.there if not node.why]
        return [node for node in usable if not node.gpus] or usable

    @property
    def threads(self) -> int:
        """The number of units that the compiling workers do at a time."""
        return sum(node.threads for node in self.able)

    def check(self) -> None:
        """Raise InputError if the scheduler has not answered for so long that it must be lost."""
        if (silent_s := time.monotonic() - self._answered_s) > _SILENT_S:
            raise InputError(f"--cluster: the scheduler at {self.scheduler} has not answered for {silent_s:.0f} s")

    def tell_once(self, what: str, error: BaseException) -> None:
        """Print an error of Dask, once for each `what`."""
        with self._lock:
            if what in self._told:
                return
            self._told.add(what)
        self._say(f"note: --cluster: {what} ({one_line(error)})")

    @property
    def expects_more(self) -> bool:
        """True if more nodes may come, since the Slurm job is alive."""
        return self._job is not None and self._job.is_alive()

    def leave_out(self, node: str, why: str) -> bool:
        """Mark the node of this address as unusable; return False if it was already."""
        with self._lock:
            if node in self._foreign:
                return False
            self._foreign[node] = why
            if (there := self._nodes.get(node)) is not None:
                self._nodes[node] = Node(there.address, there.threads, there.gpus, there.said, why)
        self._say(f"note: {node} is left out: {why}")
        return True

    def end(self) -> None:
        """Disconnect from the nodes; end those that were started by this object."""
        self._ended.set()
        # Errors of a scheduler that is being closed do not matter.
        with contextlib.suppress(Exception):
            self.client.close(_ANSWER_S)
        if self._job is not None:
            self._job.cancel()
        if self._cluster is not None:
            with contextlib.suppress(Exception):
                self._cluster.close(_ANSWER_S)

    def _wait_for_first(self, address: Address) -> None:
        """Wait for the first worker; with a Slurm job, as long as the job is alive, since queues may be long."""
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
        # Client.scheduler_info may return a state without workers that a thread of Dask's has put in its place.
        said = self.client.sync(self.client.scheduler.identity, n_workers=-1, callback_timeout=_ANSWER_S)
        self._answered_s = time.monotonic()
        found: dict[str, Any] = said["workers"]
        return found

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self._look()
            except Exception as error:
                # If the scheduler stays away, `check` raises.
                if not self._ended.is_set():
                    self.tell_once("the scheduler does not answer", error)

    def _look(self) -> None:
        workers, now_s = self._workers(), time.monotonic()
        new = [each for each in workers if each not in self._nodes and self._late.get(each, 0.0) <= now_s]
        answers: dict[str, object] = self.client.sync(self._greeted, new) if new else {}
        for address, answer in answers.items():
            if isinstance(answer, OSError):
                self._late[address] = now_s + _LATER_S
                self.tell_once("a node does not answer, and is asked again", answer)
                continue
            said = _said(answer)
            if why := str(said.get("why", "")):
                self.leave_out(address, why)
            info = workers[address]
            gpus = int(info.get("resources", {}).get(GPU, 0))
            with self._lock:
                why = self._foreign.get(address, "")
                self._nodes[address] = Node(address, int(info["nthreads"]), gpus, said, why)
        with self._lock:
            self._nodes = {address: node for address, node in self._nodes.items() if address in workers}
            self._late = {address: then_s for address, then_s in self._late.items() if address in workers}

    async def _greeted(self, new: list[str]) -> dict[str, object]:
        """Return each worker's answer by its address: an OSError if it does not answer in time."""
        function, argument = self._greeting

        async def said(address: str) -> object:
            try:
                answers = self.client.run(function, argument, workers=[address], on_error="return")
                return (await asyncio.wait_for(answers, _GREETING_S))[address]
            except (OSError, asyncio.TimeoutError) as error:
                return error if isinstance(error, OSError) else TimeoutError(f"{address}: {_GREETING_S:.0f} s")

        return dict(zip(new, await asyncio.gather(*map(said, new)), strict=True))


def _said(answer: object) -> dict[str, Any]:
    """Return a worker's description, or a description with `why` if its answer is unusable."""
    if not isinstance(answer, str):
        return {"why": one_line(answer) if isinstance(answer, BaseException) else "it does not have genkern"}
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    if not isinstance(said, dict) or said.get("protocol") != PROTOCOL:
        return {"why": "it has another version of genkern"}
    return said


async def _reach(scheduler: str, security: Any) -> None:
    """Raise OSError or TypeError if no scheduler answers, or it wants another certificate.

    A Client would raise this too, but then hang when it is closed. Does nothing if Dask's configuration has a security
    loader, whose certificates are not known here.
    """
    import dask
    from distributed.comm import connect

    if dask.config.get("distributed.client.security-loader", None) is None:
        comm = await connect(scheduler, timeout=_WAIT_S, **security.get_connection_args("client"))
        await comm.close()


def _own_scheduler(cluster: Any, security: Any) -> Any:
    """Return a scheduler in this process for workers on other machines, encrypted if Dask's configuration says how."""
    from distributed.utils import get_ip

    tls = bool(security.get_tls_config_for_role("scheduler").get("cert"))
    return cluster(
        n_workers=0,
        host=get_ip(),
        protocol="tls://" if tls else "tcp://",
        security=security,
        dashboard_address=":0",
    )
