"""Tests of genkern/compile/compile_queue.py: whose job is next, and who is told of it."""

from __future__ import annotations

from genkern.compile.compile_queue import CompileQueue
from genkern.compile.compiler import CompileJob
from genkern.kernels.kernel import KernelSpec, Target


def job(key: str) -> CompileJob:
    return CompileJob(key, "/module.py", KernelSpec("f", "", (), (), (), ()), Target("cuda", 90, 32), "/cache", 1.0)


def ordered(**of: list[tuple[int, str]]) -> CompileQueue:
    """Orders of these owners, whose results go nowhere."""
    orders = CompileQueue()
    for owner, wanted in of.items():
        for rank, key in wanted:
            orders.add(owner, job(key), rank, lambda *_: None)
    return orders


def taken(orders: CompileQueue, most: int = 99) -> list[str]:
    keys = []
    while len(keys) < most and (next_job := orders.next_job()) is not None:
        keys.append(next_job.key)
    return keys


def test_the_lowest_rank_is_next_and_of_equal_ones_the_first() -> None:
    """Until there is none."""
    assert taken(ordered(one=[(3, "a"), (1, "b"), (1, "c"), (2, "d")])) == ["b", "c", "d", "a"]


def test_owners_take_turns() -> None:
    """By how much is being done for them, whatever they had done before."""
    orders = ordered(one=[(0, "a"), (1, "b"), (2, "c")], two=[(7, "x"), (5, "y")])
    assert taken(orders, 3) == ["a", "y", "b"]
    orders.pop_finished("a")
    orders.pop_finished("b")
    assert taken(orders) == ["c", "x"]
    assert (len(orders), orders.in_flight) == (3, 3)


def test_what_is_dropped_is_not_taken() -> None:
    """Unless another one wants it; what is begun is finished, and told to those who still want it."""
    orders = ordered(one=[(0, "a"), (1, "b"), (2, "c")], two=[(9, "b"), (9, "a")])
    assert taken(orders, 1) == ["a"]
    orders.drop("one", ["a", "b"])
    assert orders.is_for_others("a")
    assert taken(orders) == ["b", "c"]
    orders.drop("one")
    assert [len(orders.pop_finished(key)) for key in "abc"] == [1, 1, 0]
    assert len(orders) == 0


def test_what_came_to_nothing_waits_again() -> None:
    """With its rank, where it is still wanted."""
    orders = ordered(one=[(0, "a"), (1, "b"), (2, "c")])
    assert taken(orders, 2) == ["a", "b"]
    orders.drop("one", ["b"])
    orders.requeue("a")
    orders.requeue("b")
    assert (len(orders), orders.in_flight) == (2, 0)
    assert taken(orders) == ["a", "c"]


def test_everything_may_be_taken_back() -> None:
    """Begun or not: nothing is left, and a result that comes late is nobody's."""
    orders = ordered(one=[(0, "a"), (1, "b")], two=[(0, "b")])
    assert taken(orders, 1) == ["a"]
    assert sorted(key for key, _ in orders.pop_all()) == ["a", "b", "b"]
    assert (len(orders), orders.in_flight, taken(orders), orders.pop_finished("a")) == (0, 0, [], [])


def test_an_owner_behind_gets_workers_after_all_others() -> None:
    """However little is done for it, and not at all where it is not to have a turn; what others want too is theirs."""
    orders = ordered(next=[(0, "x"), (1, "b"), (2, "y")], one=[(0, "a"), (1, "b")], two=[(5, "c")])
    orders.set_background("next", background=True)
    assert [orders.next_job(also_background=False).key for _ in range(3)] == ["a", "c", "b"]  # type: ignore[union-attr]
    assert orders.next_job(also_background=False) is None
    assert taken(orders, 1) == ["x"]
    orders.add("one", job("d"), 9, lambda *_: None)
    assert taken(orders, 1) == ["d"]
    orders.set_background("next", background=False)
    assert orders.next_job(also_background=False) is not None
    assert len(orders.pop_finished("b")) == 2


def test_an_owner_that_left_has_no_place() -> None:
    """One that comes anew is among the others."""
    orders = ordered(next=[(0, "a")])
    orders.set_background("next", background=True)
    orders.drop("next")
    orders.add("next", job("b"), 0, lambda *_: None)
    assert orders.next_job(also_background=False) is not None
