"""Tests of genkern/compile/candidate_builder.py: what is ordered, made and dropped; test_build_environment.py has
what becomes of it.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Hashable, Iterator, Sequence
from pathlib import Path

import pytest
from small_gemms import AMD, AMD_SPLIT, target_of

from genkern.compile.build_environment import BuildEnvironment
from genkern.compile.cache import BinaryCache
from genkern.compile.candidate_builder import CandidateBuilder
from genkern.compile.compile_queue import ResultCallback
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.errors import OutputError
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Binary, Resources
from genkern.timing.session import Budget

PLAIN = (AMD, dataclasses.replace(AMD, GROUP_SIZE_M=8))
# These share the kernel that reduces.
SPLITS = [(dataclasses.replace(AMD_SPLIT, BLOCK_SIZE_M=m),) for m in (16, 32)]


class HeldFarm(Farm):
    """Makes what it is told to make, when it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(BinaryCache(folder), target_of("gfx942"), "3.6.0", jobs=1, timeout_s=1.0)
        self.ordered: list[tuple[int, str]] = []
        self.dropped: list[str] = []
        self._waiting: dict[str, tuple[str, ResultCallback]] = {}

    def order(self, owner: Hashable, jobs: Sequence[tuple[int, CompileJob]], tell: ResultCallback) -> None:
        for rank, job in jobs:
            name = f"{job.spec.function} {dict(job.spec.constants).get('BLOCK_SIZE_M')}"
            self.ordered.append((rank, name))
            self._waiting[name] = job.key, tell

    def drop(self, owner: Hashable, keys: Collection[str] | None = None) -> None:
        self.dropped += [name for name, (key, _) in self._waiting.items() if keys is not None and key in keys]

    def make(self, *names: str) -> None:
        for name in names:
            key, tell = self._waiting[name]
            tell(key, Binary(key, "/entry", name, Resources(shared_bytes=16384)))

    def fail(self, name: str, error: Exception) -> None:
        key, tell = self._waiting[name]
        tell(key, error)


@pytest.fixture
def farm(tmp_path: Path) -> HeldFarm:
    return HeldFarm(tmp_path / "cache")


@pytest.fixture
def bench(farm: HeldFarm, tmp_path: Path) -> Iterator[CandidateBuilder]:
    folder = str(tmp_path / "modules")
    gpu = gpu_for_arch("gfx942")
    build_environment = BuildEnvironment(
        farm, gpu, "gfx942", Budget(), init_type="hpl", module_dir=folder, keep_modules=False
    )
    with build_environment.open(
        GemmProblem(128, 64, 4096), [*PLAIN, *(c for these in SPLITS for c in these)], 0
    ) as opened:
        yield opened


def made(builder: CandidateBuilder, wait: bool = False) -> list[tuple[Config, ...]]:
    found = []
    while (one := builder.next_built(wait=wait)) is not None:
        found.append(one.configs)
    return found


def test_binaries_are_ordered_once_each(bench: CandidateBuilder, farm: HeldFarm) -> None:
    """With the rank of what wants them first; each set of configs is made when it has all of its own."""
    bench.request_binaries([(4, PLAIN), (5, SPLITS[0]), (6, SPLITS[1])])
    assert farm.ordered == [
        *((4, "matmul_tiled 64"), (5, "matmul_tiled_split 16"), (5, "reduce_splits None"), (6, "matmul_tiled_split 32"))
    ]
    assert (made(bench), bench.in_flight, farm.counts.wanted) == ([], 3, 4)
    farm.make("reduce_splits None", "matmul_tiled_split 32")
    assert (made(bench), bench.in_flight) == ([SPLITS[1]], 2)
    farm.make("matmul_tiled_split 16", "matmul_tiled 64")
    assert (made(bench, wait=True), bench.in_flight, bench.counts) == ([SPLITS[0], PLAIN], 0, (4, 0, 0))


def test_what_is_dropped_is_not_made(bench: CandidateBuilder, farm: HeldFarm) -> None:
    """Nor are its binaries compiled, but for those that others wait for; ordered later it is made after all."""
    bench.request_binaries([(0, SPLITS[0]), (1, SPLITS[1])])
    bench.drop(0)
    bench.drop(0)
    assert farm.dropped == ["matmul_tiled_split 16"]
    farm.make("reduce_splits None", "matmul_tiled_split 32")
    assert made(bench) == []
    assert (made(bench), bench.in_flight) == ([SPLITS[1]], 0)
    bench.request_binaries([(2, SPLITS[0])])
    assert farm.ordered[-1] == (2, "matmul_tiled_split 16")
    farm.make("matmul_tiled_split 16")
    assert made(bench) == [SPLITS[0]]


def test_configs_of_one_binary_may_be_ordered_apart(bench: CandidateBuilder, farm: HeldFarm) -> None:
    """Its binary is compiled once; what is ordered when it is there needs no compile."""
    bench.request_binaries([(0, PLAIN[:1]), (1, PLAIN[1:])])
    assert farm.ordered == [(0, "matmul_tiled 64")]
    farm.make("matmul_tiled 64")
    assert made(bench) == [PLAIN[:1], PLAIN[1:]]
    bench.request_binaries([(2, SPLITS[0])])
    bench.drop(2)
    assert farm.dropped == ["matmul_tiled_split 16", "reduce_splits None"]


@pytest.mark.parametrize("how", ["drop", "close"])
def test_a_thread_that_waits_comes_back(bench: CandidateBuilder, how: str) -> None:
    """Where there is nothing any more to wait for."""
    bench.request_binaries([(0, PLAIN)])
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.append(bench.next_built(wait=True)), daemon=True)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    if how == "drop":
        bench.drop(0)
    else:
        bench.close()
    waiting.join(10)
    assert found == [None]


def test_an_error_of_a_compile_is_raised(bench: CandidateBuilder, farm: HeldFarm) -> None:
    """To whoever takes what is made."""
    bench.request_binaries([(0, PLAIN)])
    farm.fail("matmul_tiled 64", OutputError("the disk is full"))
    with pytest.raises(OutputError, match="the disk is full"):
        bench.next_built(wait=True)


def test_what_is_prepared_counts_at_its_turn(bench: CandidateBuilder, farm: HeldFarm) -> None:
    """Not before, whoever compiled it; what is given up instead counts for nobody."""
    bench.set_background(background=True)
    bench.request_binaries([(0, PLAIN), (1, SPLITS[0])])
    farm.make(*(name for _, name in farm.ordered))
    assert made(bench) == [PLAIN, SPLITS[0]]
    assert (farm.counts.wanted, farm.counts.cached) == (0, 0)
    bench.set_background(background=False)
    assert (farm.counts.wanted, farm.counts.cached) == (3, 3)


def test_what_is_cached_needs_no_farm(bench: CandidateBuilder, farm: HeldFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked up once, and counted when it is wanted."""
    asked: list[str] = []

    def get(key: str) -> Binary:
        asked.append(key)
        return Binary(key, "/entry", "symbol", Resources(shared_bytes=16384))

    monkeypatch.setattr(farm.cache, "get", get)
    assert bench.is_cached(PLAIN)
    assert bench.is_cached(SPLITS[0])
    assert (farm.counts.wanted, farm.counts.cached) == (0, 0)
    bench.request_binaries([(0, PLAIN), (1, SPLITS[0])])
    assert farm.ordered == []
    assert made(bench) == [PLAIN, SPLITS[0]]
    assert (farm.counts.wanted, farm.counts.cached, bench.counts) == (3, 3, (3, 0, 3))
    assert len(asked) == len(set(asked)) == 3
