"""Tests of genkern.farm.remote.dask_pool on a real cluster of processes: `make test-cluster`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import environment
from small_gemms import TRITON_VERSION, target_of
from trouble_kernels import trouble_spec, write_trouble

from genkern.errors import InputError
from genkern.farm.cache import BinaryCache, Failure
from genkern.farm.farm import Farm
from genkern.farm.remote.dask_pool import DaskPool, require_address
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Binary, Outcome

TARGET = target_of("gfx942")
HERE = MadeFor.here(TARGET, TRITON_VERSION)
on_a_cluster = pytest.mark.skipif(not os.environ.get("GENKERN_CLUSTER_TESTS"), reason="make test-cluster")


@pytest.mark.parametrize("text", ["dask://node", "local:0", "local", "slurm:file", "", "dask://node:1 x", "tcp://"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="give local:N, dask://HOST:PORT or tls://HOST:PORT"):
        require_address(text)


def test_addresses() -> None:
    for text in ("local:4", "dask://node1:8786", "tls://node1:8786", "tcp://10.0.0.1:8786"):
        assert require_address(text) == text


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler with three nodes, which share a cache, and one with another Triton."""
    from distributed import LocalCluster

    at = tmp_path_factory.mktemp("nodes")
    foreign = at / "foreign" / "triton"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").write_text("__version__ = '3.6.9'\n")
    env = environment({"GENKERN_CACHE_DIR": str(at / "cache")})
    local = LocalCluster(n_workers=3, threads_per_worker=1, processes=True, dashboard_address=":0", env=env)
    path = os.pathsep.join([str(foreign.parent), *sys.path])
    command = [sys.executable, "-m", "distributed.cli.dask_worker", local.scheduler_address, "--nthreads", "1"]
    other = subprocess.Popen([*command, "--no-dashboard"], env=env | {"PYTHONPATH": path}, cwd=at)
    try:
        deadline_s = time.monotonic() + 120
        while len(local.scheduler_info["workers"]) < 4:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        yield "dask://" + local.scheduler_address.removeprefix("tcp://")
    finally:
        other.terminate()
        other.wait(30)
        local.close()


@pytest.fixture
def farm(scheduler: str, tmp_path: Path) -> Iterator[tuple[Farm, DaskPool, list[str]]]:
    """A farm on it whose cache is empty, its pool, and what that has said."""
    said: list[str] = []
    cache = BinaryCache(tmp_path / "driver")
    pool = DaskPool(scheduler, cache, HERE, said.append)
    farm = Farm(cache, TARGET, TRITON_VERSION, jobs=pool.size, timeout_s=10.0, pool=pool)
    with contextlib.closing(farm):
        yield farm, pool, said


@on_a_cluster
def test_units_are_made_where_they_can_be(farm: tuple[Farm, DaskPool, list[str]], tmp_path: Path) -> None:
    """The node with another Triton is named and left out; what hangs or dies costs itself; a node that goes costs what
    it was doing, which another does.
    """
    made_by, pool, said = farm
    assert pool.size == 3
    assert len([line for line in said if "is left out: it has Triton 3.6.9" in line]) == 1
    names = [*(f"plain_{number}" for number in range(7)), "hang", "die"]
    module = write_trouble(tmp_path)
    results = {}
    for result in made_by.compile(str(module), [trouble_spec(name) for name in names]):
        if not results:
            pids = pool._client.run(os.getpid, workers=pool._able())
            os.kill(next(iter(pids.values())), signal.SIGKILL)
        results[result.key] = result
    found = {name: results[made_by.key(trouble_spec(name))] for name in names}
    hang, die = found.pop("hang"), found.pop("die")
    assert isinstance(hang, Failure)
    assert isinstance(die, Failure)
    assert (hang.outcome, die.outcome) == (Outcome.COMPILE_TIMED_OUT, Outcome.COMPILE_FAILED)
    for result in found.values():
        assert isinstance(result, Binary)
        assert made_by.cache.get(result.key) == result
    assert made_by.counts.compiled == 7


@on_a_cluster
def test_nodes_that_die_of_a_unit_do_not_go_on_dying(farm: tuple[Farm, DaskPool, list[str]], tmp_path: Path) -> None:
    """It fails as from outside, which no cache keeps; others are made."""
    made_by, _, _ = farm
    specs = [trouble_spec(name) for name in ("kill_worker", "plain_7")]
    results = {result.key: result for result in made_by.compile(str(write_trouble(tmp_path)), specs)}
    killed, plain = (results[made_by.key(spec)] for spec in specs)
    assert isinstance(plain, Binary)
    assert isinstance(killed, Failure)
    assert killed.from_outside
    assert "again and again" in killed.message


@on_a_cluster
def test_a_cluster_that_cannot_compile_is_refused(scheduler: str, tmp_path: Path) -> None:
    """In one line that names a node."""
    wanted = MadeFor(HERE.target, "3.6.1", HERE.cute, HERE.lowering, HERE.environment)
    with pytest.raises(InputError, match=r"no node can compile: tcp://.*this run 3\.6\.1"):
        DaskPool(scheduler, BinaryCache(tmp_path), wanted, lambda line: None)
