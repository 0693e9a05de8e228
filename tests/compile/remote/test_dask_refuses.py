"""Tests of genkern.compile.remote.dask_pool where Dask refuses, forgets and fails: nobody waits for ever. Without
Dask.
"""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec, write_trouble

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote import dask_pool
from genkern.compile.remote.dask_pool import DaskPool
from genkern.compile.remote.nodes import Node
from genkern.compile.remote.unit import NotBegun, Result, answered, read_task
from genkern.errors import InputError
from genkern.gemm.records import Binary, Outcome

TARGET = target_of("gfx942")
WAIT_S = 20.0
# What becomes of a task: its answer, or what awaiting it raises; None: nothing is ever heard of it.
Becomes = Callable[[bytes], "bytes | Exception | None"]


class KilledWorker(Exception):
    """By the name of Dask's."""


def failed(data: bytes) -> bytes:
    """An answer, of each unit that it is a failure: it takes no compiler."""
    return answered([Failure(unit.key, Outcome.COMPILE_FAILED, "refused", False) for unit in read_task(data)])


class Client:
    """Dask's, as far as the pool knows it; does with the next task the next of `acts`, and the last with all others."""

    def __init__(self, *acts: Becomes | Exception) -> None:
        self.acts = list(acts)
        self.asked: list[bytes] = []
        self.cancelled: list[Any] = []
        self.refuses_to_cancel = False
        self.loop = self

    def map(self, function: object, data: Sequence[bytes], **_: object) -> list[Any]:
        act = self.acts.pop(0) if len(self.acts) > 1 else self.acts[0]
        if isinstance(act, Exception):
            raise act
        self.asked += data
        return [_Awaited(act(each)) for each in data]

    def cancel(self, futures: Sequence[Any]) -> None:
        if self.refuses_to_cancel:
            raise RuntimeError("no")
        self.cancelled += futures

    def add_callback(self, function: Callable[..., Any], *given: object) -> None:
        threading.Thread(target=lambda: asyncio.run(function(*given)), daemon=True).start()


class _Awaited:
    def __init__(self, outcome: bytes | Exception | None) -> None:
        self.outcome = outcome

    def __await__(self) -> Iterator[Any]:
        yield from asyncio.sleep(3600 if self.outcome is None else 0).__await__()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class Lab:
    """A pool whose nodes are a stand-in."""

    def __init__(self, at: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.told = at, []
        node = Node("tcp://a", 1, 0, {})
        self.nodes = SimpleNamespace(
            able=[node], there=[node], threads=1, expects_more=False, client=Client(failed), ended=False,
            check=lambda: None, leave_out=lambda *_: True, end=lambda: None,
            tell_once=lambda what, error: self.told.append(f"{what}: {error}"),
        )  # fmt: skip
        monkeypatch.setattr(dask_pool, "Nodes", lambda *_: self.nodes)
        monkeypatch.setattr(dask_pool, "_LOOK_S", 0.01)
        self.pool = DaskPool("local:1", BinaryCache(at / "cache"), MadeFor.here(TARGET, TRITON_VERSION), print)

    def begin(self, *names: str) -> list[Future[Binary | Failure]]:
        module = write_trouble(self.at)
        specs = [trouble_spec(name) for name in names]
        folder = str(self.at / "cache")
        return self.pool.begin(
            [
                CompileJob(spec.key(TARGET, TRITON_VERSION), str(module), spec, TARGET, folder, 10.0, None)
                for spec in specs
            ]
        )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(tmp_path, monkeypatch)
    yield made
    made.pool.end()


def outcomes(futures: Sequence[Future[Binary | Failure]]) -> list[str]:
    """What became of each, within the time that a test has."""
    found = []
    for future in futures:
        error = future.exception(WAIT_S)
        found.append(str(error) if error else future.result().message)  # type: ignore[union-attr]
    return found


def test_a_cluster_that_takes_nothing_for_a_while_is_asked_again(lab: Lab) -> None:
    lab.nodes.client = client = Client(RuntimeError("busy"), RuntimeError("busy"), failed)
    assert outcomes(lab.begin("plain_1", "plain_2")) == ["refused"] * 2
    assert lab.told == ["a task is not taken: busy"] * 2
    assert [len(read_task(data)) for data in client.asked] == [2]


def test_a_cluster_that_takes_nothing_ends_the_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, with what it said."""
    monkeypatch.setattr(dask_pool, "_REFUSES_S", 0.05)
    lab.nodes.client = Client(RuntimeError("closed"))
    for said in outcomes(lab.begin("plain_1", "plain_2")):
        assert said == "--cluster: the cluster is lost, or cannot run genkern (RuntimeError: closed)"


@pytest.mark.parametrize("forgotten", [CancelledError(), asyncio.CancelledError()])
def test_a_task_that_dask_has_forgotten_is_asked_for_again(lab: Lab, forgotten: Any) -> None:
    """Its units alone, since one of them may be why."""
    lab.nodes.client = client = Client(lambda data: forgotten, failed)
    assert outcomes(lab.begin("plain_1", "plain_2")) == ["refused"] * 2
    assert [len(read_task(data)) for data in client.asked] == [2, 1, 1]


def test_a_unit_that_is_always_forgotten_fails(lab: Lab) -> None:
    """As from outside: no cache keeps that."""
    for act in (lambda data: CancelledError(), lambda data: KilledWorker()):
        lab.nodes.client = Client(act)
        (future,) = lab.begin("plain_1")
        assert outcomes([future]) == ["nodes were lost with it repeatedly"]
        assert future.result().from_outside  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "answer", [b"", b"[]\n", b'[{"more": []}]\n', answered([NotBegun()] * 3), ValueError("no"), OSError("gone")]
)
def test_what_is_no_answer_ends_the_run(lab: Lab, answer: Any) -> None:
    lab.nodes.client = Client(lambda data: answer)
    for said in outcomes(lab.begin("plain_1", "plain_2")):
        assert said.startswith("--cluster: the cluster is lost, or cannot run genkern (")


@pytest.mark.parametrize("result", [NotBegun(), {}, {"genkern.json": b"{}"}])
def test_a_node_that_never_makes_a_unit(lab: Lab, result: Result) -> None:
    """It fails, however the node says so."""
    lab.nodes.client = Client(lambda data: answered([result for _ in read_task(data)]))
    assert set(outcomes(lab.begin("plain_1", "plain_2"))) <= {
        "nodes were lost with it repeatedly",
        "its binary came back damaged",
    }


def test_nodes_that_go_give_their_units_back(lab: Lab) -> None:
    """Also where Dask does not let them be withdrawn."""
    lab.nodes.there = [*lab.nodes.able, Node("tcp://x", 1, 0, {}, "another Triton")]
    lab.nodes.client = client = Client(lambda data: None, failed)
    client.refuses_to_cancel = True
    futures = lab.begin("plain_1", "plain_2")
    until(lambda: client.asked)
    lab.nodes.able = [Node("tcp://b", 1, 0, {})]
    lab.nodes.there = [*lab.nodes.able, lab.nodes.there[1]]
    assert outcomes(futures) == ["refused"] * 2
    assert lab.told == ["tasks are not withdrawn: no"]


def test_a_scheduler_that_is_gone_ends_the_run(lab: Lab) -> None:
    """What is under way then, and what comes after."""
    lab.nodes.client = client = Client(lambda data: None)
    futures = lab.begin("plain_1")
    until(lambda: client.asked)

    def check() -> None:
        raise InputError("--cluster: the scheduler has not answered")

    lab.nodes.check = check
    assert outcomes(futures + lab.begin("plain_2")) == ["--cluster: the scheduler has not answered"] * 2
    assert len(client.cancelled) >= 1


def test_a_bug_of_the_pool_ends_the_run(lab: Lab) -> None:
    """Its thread goes on, so that nobody waits for it."""
    lab.nodes.client = Client(lambda data: None)
    lab.begin("plain_1")
    works, lab.nodes.check = lab.nodes.check, None
    assert "TypeError" in outcomes(lab.begin("plain_2"))[0]
    lab.nodes.check, lab.nodes.client = works, Client(failed)
    assert outcomes(lab.begin("plain_3")) == ["refused"]


def test_the_end_of_a_run_ends_its_units(lab: Lab) -> None:
    """Those that come later too."""
    lab.nodes.client = client = Client(lambda data: None)
    futures = lab.begin("plain_1")
    until(lambda: client.asked)
    lab.pool.end()
    assert outcomes(futures + lab.begin("plain_2")) == ["--cluster: the run has ended"] * 2
    assert len(client.cancelled) == 1


def until(condition: Callable[[], object]) -> None:
    """Wait for what the pool's thread does."""
    waited = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it did not happen")


def test_texts_of_modules_do_not_gather(lab: Lab) -> None:
    """A run has a module for each of its sizes, however many these are; the pool keeps those of the last."""
    lab.nodes.client = Client(failed)
    module = write_trouble(lab.at)
    spec = trouble_spec("plain")
    tracemalloc.start()
    for number in range(200):
        path = lab.at / f"module_{number}.py"
        path.write_text(f"# {number:0100000}\n{module.read_text()}")
        key, folder = f"{number:064}", str(lab.at / "cache")
        assert outcomes(lab.pool.begin([CompileJob(key, str(path), spec, TARGET, folder, 10.0, None)])) == ["refused"]
        # What the stand-in remembers.
        lab.nodes.client.asked.clear()
        path.unlink()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 10_000_000
