"""Tests of genkern.compile.remote.dask_pool on a real cluster of processes: `make test-cluster`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import environment
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec, write_trouble

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.farm import Farm
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote.dask_pool import DaskPool
from genkern.errors import InputError
from genkern.gemm.records import Binary, Outcome

TARGET = target_of("gfx942")
HERE = MadeFor.here(TARGET, TRITON_VERSION)
pytestmark = pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")
Made = tuple[Farm, DaskPool, list[str]]


@contextlib.contextmanager
def worker(scheduler: str, at: Path, *options: str, **changes: str) -> Iterator[None]:
    """One more node, until it is known there."""
    command = [sys.executable, "-m", "dask", "worker", scheduler, "--nthreads", "1", "--no-dashboard", *options]
    with subprocess.Popen(command, env=environment(changes), cwd=at, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A cluster of four nodes, which share a cache, and one with another Triton."""
    import dask
    from distributed import LocalCluster

    at = tmp_path_factory.mktemp("nodes")
    foreign = at / "foreign" / "triton"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("__version__ = '3.6.9'\n")
    cache = {"GENKERN_CACHE_DIR": str(at / "cache")}
    # A node that says nothing is lost; it is five minutes as a rule.
    with dask.config.set({"distributed.scheduler.worker-ttl": "10s"}):
        local = LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0", env=environment(cache)
        )
    path = os.pathsep.join([str(foreign.parent), *sys.path])
    with contextlib.closing(local), worker(local.scheduler_address, at, PYTHONPATH=path, **cache):
        wait_for(local, 5)
        yield local


def wait_for(local: Any, workers: int) -> None:
    deadline_s = time.monotonic() + 120
    while len(local.scheduler.workers) < workers:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.fixture
def make(local: Any, tmp_path: Path) -> Iterator[Callable[[Path], Made]]:
    """A farm on it with the cache that is named, its pool, and what that has said."""
    with contextlib.ExitStack() as stack:

        def made(folder: Path) -> Made:
            said: list[str] = []
            cache = BinaryCache(folder)
            pool = DaskPool("dask://" + local.scheduler_address.removeprefix("tcp://"), cache, HERE, said.append)
            farm = stack.enter_context(
                contextlib.closing(Farm(cache, TARGET, TRITON_VERSION, jobs=1, timeout_s=10.0, pool=pool))
            )
            farm.connect()
            return farm, pool, said

        yield made


def processes_of(pool: DaskPool) -> list[int]:
    """The processes of the nodes that compile."""
    nodes = pool.connect()
    return [*nodes.client.run(os.getpid, workers=[node.address for node in nodes.able]).values()]


def test_units_are_made_where_they_can_be(make: Callable[[Path], Made], tmp_path: Path) -> None:
    """The node with another Triton is named and left out; what hangs or dies costs itself; a node that goes, and one
    that says nothing any more, cost what they were doing, which another does. None of them needs PyTorch.
    """
    farm, pool, said = make(tmp_path / "driver")
    assert farm.jobs == pool.size == 4
    assert len([line for line in said if "is left out: it has Triton 3.6.9" in line]) == 1
    names = [*(f"plain_{number}" for number in range(7)), "hang", "die"]
    module = write_trouble(tmp_path)
    results = {}
    for result in farm.compile(str(module), [trouble_spec(name) for name in names]):
        if not results:
            one, other, *_ = processes_of(pool)
            os.kill(one, signal.SIGKILL)
            os.kill(other, signal.SIGSTOP)
        results[result.key] = result
    found = {name: results[farm.key(trouble_spec(name))] for name in names}
    hang, die = found.pop("hang"), found.pop("die")
    assert isinstance(hang, Failure)
    assert isinstance(die, Failure)
    assert (hang.outcome, die.outcome) == (Outcome.COMPILE_TIMED_OUT, Outcome.COMPILE_FAILED)
    for result in found.values():
        assert isinstance(result, Binary)
        assert farm.cache.get(result.key) == result
    assert farm.counts.compiled == 7
    assert {*pool.connect().client.run(eval, "'torch' in __import__('sys').modules").values()} == {False}


def test_entries_of_a_folder_that_both_see_do_not_travel(
    make: Callable[[Path], Made], local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there once, and what is shown too late by a network file system comes as bytes."""
    seen: list[type] = []
    read = sys.modules[DaskPool.__module__].read_answer

    def reading(data: bytes) -> object:
        seen.extend(map(type, results := read(data)))
        return results

    monkeypatch.setattr("genkern.compile.remote.dask_pool.read_answer", reading)
    farm, _, _ = make(tmp_path / "shared")
    module = str(write_trouble(tmp_path))
    specs = [trouble_spec("plain_1"), trouble_spec("plain_2")]
    (one,) = farm.compile(module, specs[:1])
    assert [kind.__name__ for kind in seen] == ["AlreadyInSharedCache"]
    assert isinstance(one, Binary)
    assert Path(one.path).is_relative_to(tmp_path / "shared")
    late, get = [True], farm.cache.get
    monkeypatch.setattr(farm.cache, "get", lambda key: None if late and late.pop() else get(key))
    job = farm.job(farm.key(specs[1]), module, specs[1])
    (two,) = farm.compile_jobs([job])
    assert isinstance(two, Binary)
    assert [kind.__name__ for kind in seen[1:]] == ["AlreadyInSharedCache", "dict"]
    assert len(list((tmp_path / "shared").glob("??/*"))) == 2
    farm.close()
    assert list((tmp_path / "shared" / ".unborn").iterdir()) == []


def test_nodes_that_measure_do_not_compile(make: Callable[[Path], Made], local: Any, tmp_path: Path) -> None:
    """Where others do; those that come late take part, and what was only theirs is done by others when they go."""
    farm, pool, _ = make(tmp_path / "driver")
    before = len(local.scheduler.workers)
    with worker(local.scheduler_address, tmp_path, "--resources", "GPU=1"):
        wait_for(local, before + 1)
        deadline_s = time.monotonic() + 60
        while not (measuring := [node for node in pool.connect().there if node.gpus]):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        assert measuring[0].address not in [node.address for node in pool.connect().able]
        names = [f"plain_{number}" for number in range(8)]
        results = list(farm.compile(str(write_trouble(tmp_path)), [trouble_spec(name) for name in names]))
        assert all(isinstance(result, Binary) for result in results)
        assert local.scheduler.workers[measuring[0].address].metrics["task_counts"] == {}


def test_nodes_that_die_of_a_unit_do_not_go_on_dying(make: Callable[[Path], Made], tmp_path: Path) -> None:
    """It fails as from outside, which no cache keeps; others are made."""
    farm, _, _ = make(tmp_path / "driver")
    specs = [trouble_spec(name) for name in ("kill_worker", "plain_7")]
    results = {result.key: result for result in farm.compile(str(write_trouble(tmp_path)), specs)}
    killed, plain = (results[farm.key(spec)] for spec in specs)
    assert isinstance(plain, Binary)
    assert isinstance(killed, Failure)
    assert killed.from_outside
    assert "repeatedly" in killed.message


def test_a_cluster_that_cannot_compile_is_refused(local: Any, tmp_path: Path) -> None:
    """In one line that names a node."""
    wanted = MadeFor(HERE.target, "3.6.1", HERE.cute, HERE.lowering, HERE.environment)
    pool = DaskPool(local.scheduler_address, BinaryCache(tmp_path), wanted, lambda line: None)
    with (
        contextlib.closing(_Ending(pool)),
        pytest.raises(InputError, match=r"tcp://.*3\.6\.1"),
    ):
        pool.connect()


class _Ending:
    """A pool, for contextlib.closing."""

    def __init__(self, pool: DaskPool) -> None:
        self.close = pool.end
