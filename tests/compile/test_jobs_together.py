"""A farm with a pool elsewhere: how many jobs it hands out at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from small_gemms import TRITON_VERSION, target_of
from test_farm import Owner

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.gemm.records import Binary, Resources

NODES = 2


class Elsewhere:
    """Nodes that begin what they are given, all of it together, and end it when they are told to."""

    size = NODES

    def __init__(self) -> None:
        self.groups: list[dict[CompileJob, Future[Binary | Failure]]] = []
        self._begun = threading.Condition()

    def connect(self) -> None:
        pass

    def end(self) -> None:
        pass

    def begin(self, jobs: Sequence[CompileJob]) -> list[Future[Binary | Failure]]:
        with self._begun:
            self.groups.append({job: Future() for job in jobs})
            self._begun.notify_all()
        return [*self.groups[-1].values()]

    def names(self, count: int) -> list[list[str]]:
        """The jobs of the first so many groups, and there are no more now."""
        with self._begun:
            assert self._begun.wait_for(lambda: len(self.groups) >= count, 20)
            assert not self._begun.wait_for(lambda: len(self.groups) > count, 0.05)
        return [[job.spec.function for job in group] for group in self.groups]

    def has(self, number: int) -> bool:
        """Whether there is such a group, or will be."""
        with self._begun:
            return self._begun.wait_for(lambda: len(self.groups) > number, 0.3)

    def finish(self, number: int) -> None:
        for job, future in self.groups[number].items():
            future.set_result(Binary(job.key, "/entry", job.spec.function, Resources()))


def test_many_jobs_are_handed_out_together_and_few_alone(tmp_path: Path) -> None:
    """In their order; what is wanted more is in the next group, and the last ones of a run are shared out evenly."""
    pool = Elsewhere()
    farm = Farm(BinaryCache(tmp_path), target_of("gfx942"), TRITON_VERSION, jobs=1, timeout_s=1, pool=pool)
    owner = Owner(farm)
    owner.order(*((rank, f"k{rank}") for rank in range(100)))
    ordered = [f"k{rank}" for rank in range(100)]
    # Two for the nodes and two that wait for them.
    assert pool.names(4) == [ordered[start : start + 8] for start in range(0, 32, 8)]
    owner.order((-1, "late"))
    pool.finish(0)
    assert pool.names(5)[4][0] == "late"
    for number in itertools.count(1):
        if not pool.has(number):
            break
        pool.finish(number)
    assert sorted(owner.told) == sorted([*ordered, "late"])
    sizes = [len(group) for group in pool.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-2 * NODES :] == [1] * 2 * NODES
    farm.close()


def test_few_jobs_are_handed_out_alone(tmp_path: Path) -> None:
    """As a size that is measured orders them: each on a node of its own."""
    pool = Elsewhere()
    farm = Farm(BinaryCache(tmp_path), target_of("gfx942"), TRITON_VERSION, jobs=1, timeout_s=1, pool=pool)
    Owner(farm).order(*((rank, f"k{rank}") for rank in range(8 * NODES - 1)))
    assert pool.names(4) == [["k0"], ["k1"], ["k2"], ["k3"]]
    farm.close()
