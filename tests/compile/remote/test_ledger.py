"""Tests of genkern.compile.remote.ledger: whatever happens in whatever order, every unit ends, and once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_gemms import target_of

from genkern.compile.cache import Failure
from genkern.compile.kernels_file import MadeFor
from genkern.compile.remote import ledger as module
from genkern.compile.remote.ledger import SILENCE_S, WITHOUT_NODES_S, Ledger, Made, RetryUnit, State, Task, WantedUnit
from genkern.compile.remote.unit import CompileUnit, SharedCache
from genkern.errors import InputError
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec

SPEC = KernelSpec("f", "cd", (), (), (), ())
TIMEOUT_S = 30.0
DONE = Failure("done", Outcome.COMPILE_FAILED, "as a kernel does", False)


def unit(name: object) -> CompileUnit:
    return CompileUnit(str(name), "", SPEC, target_of("sm_90"), TIMEOUT_S, MadeFor("a", "b", "c", "d", "e"))


class Cluster:
    """A ledger, nodes and a clock, and whatever may happen to them; what each unit was told."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.told: dict[str, list[Made]] = {}
        self.wanted: list[WantedUnit] = []
        self.able: set[str] = set()
        self.foreign: set[str] = set()
        self.tasks: dict[int, Task] = {}
        self.now_s = 0.0

    def want(self, count: int) -> list[WantedUnit]:
        """So many more, for one node."""
        new = []
        for _ in range(count):
            name = str(len(self.wanted))
            self.told[name] = []
            self.wanted.append(wanted := WantedUnit(unit(name), self.told[name].append))
            new.append(wanted)
        self.ledger.want(new)
        return new

    def ask(self) -> list[Task]:
        asked = self.ledger.ask(self.able, self.able | self.foreign, self.now_s)
        self.tasks |= {task.number: task for task in asked}
        return asked

    def look(self, passed_s: float = 1.0) -> list[int]:
        self.now_s += passed_s
        return self.ledger.looked(self.able, self.able | self.foreign, self.now_s, "none is there")

    def answer(self, number: int, answers: Callable[[WantedUnit], Made | RetryUnit] = lambda wanted: DONE) -> None:
        units = self.tasks[number].wanted
        self.ledger.answered(number, [answers(wanted) for wanted in units], self.now_s)

    def check(self) -> None:
        """Every unit is in one place, which its state says; it was told once where it has ended, and not before."""
        waiting = [wanted for group in self.ledger._waiting for wanted in group]
        asked = [wanted for task in self.ledger._tasks.values() for wanted in task.wanted]
        places = Counter(map(id, [*waiting, *asked]))
        assert set(places.values()) <= {1}
        for wanted in self.wanted:
            told = self.told[wanted.unit.key]
            expected = State.ENDED if told else State.WAITING if wanted in waiting else State.ASKED
            assert wanted.state is expected
            assert len(told) == (id(wanted) not in places)

    def assert_all_ended(self) -> None:
        self.check()
        assert self.ledger.is_empty
        assert all(len(told) == 1 for told in self.told.values())


NODES = "abcd"
_tasks = st.integers(1, 30)
_answers = st.lists(st.sampled_from(["done", "again", "counts"]), min_size=4, max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("want"), st.integers(1, 4)),
    st.tuples(st.just("ask")),
    st.tuples(st.just("not_asked")),
    st.tuples(st.just("nodes"), st.sets(st.sampled_from(NODES)), st.sets(st.sampled_from("xy"))),
    st.tuples(st.just("look"), st.floats(0, 400)),
    st.tuples(st.just("answered"), _tasks, _answers),
    st.tuples(st.just("lost"), _tasks, st.booleans()),
    st.tuples(st.just("broken"), _tasks),
    st.tuples(st.just("give_up")),
)  # fmt: skip


def happen(cluster: Cluster, event: Sequence[object]) -> None:
    """One event, also of tasks that are over, or were never asked."""
    kind, *what = event
    ledger, now_s = cluster.ledger, cluster.now_s
    if kind == "want":
        cluster.want(what[0])  # type: ignore[arg-type]
    elif kind == "ask":
        cluster.ask()
    elif kind == "not_asked":
        ledger.not_asked(cluster.ask())
    elif kind == "nodes":
        cluster.able, cluster.foreign = what  # type: ignore[assignment]
    elif kind == "look":
        cluster.look(what[0])  # type: ignore[arg-type]
    elif kind == "give_up":
        ledger.give_up(InputError("ended"))
    elif what[0] in cluster.tasks:
        number: int = what[0]  # type: ignore[assignment]
        if kind == "answered":
            kinds = iter(what[1])  # type: ignore[call-overload]
            of = {
                "done": lambda w: DONE,
                "again": lambda w: RetryUnit(w.unit, False),
                "counts": lambda w: RetryUnit(w.unit, True),
            }
            cluster.answer(number, lambda wanted: of[next(kinds)](wanted))
        elif kind == "lost":
            ledger.lost(number, now_s, killed=bool(what[1]))
        else:
            ledger.broken(number, InputError("no answer"), now_s)


@settings(max_examples=300, deadline=None)
@given(events=st.lists(EVENTS, max_size=40), ending=st.sampled_from(["works", "dies", "silent", "empty", "refuses"]))
def test_no_order_of_events_leaves_a_unit_waiting(events: list[Sequence[object]], ending: str) -> None:
    """Whatever has happened: a cluster that works from then on makes all that is left, and one that does not, in any
    way, ends it within the time limits.
    """
    cluster = Cluster()
    cluster.want(2)
    for event in events:
        happen(cluster, event)
        cluster.check()
    # A step of the end is what a pool does in a second.
    for step in range(3_000):
        if cluster.ledger.is_empty:
            break
        cluster.foreign = set()
        if ending == "works":
            cluster.able = {*NODES}
            cluster.look()
            for task in cluster.ask():
                cluster.answer(task.number)
            for number in [*cluster.tasks]:
                cluster.answer(number)
        elif ending == "dies":
            # Nodes die of all that they get, and are there again by another name; Dask says it of what any may do.
            cluster.able, cluster.foreign = {f"{step}"}, {"x"}
            cluster.look()
            cluster.ask()
            for number, task in cluster.tasks.items():
                if task.able is None:
                    cluster.ledger.lost(number, cluster.now_s, killed=True)
        elif ending == "silent":
            cluster.able = {*NODES}
            cluster.look()
            cluster.ask()
        elif ending == "refuses":
            cluster.able = {*NODES}
            cluster.look()
            cluster.ledger.not_asked(cluster.ask())
            if step > 100:
                cluster.ledger.give_up(InputError("refused"))
        else:
            cluster.able = set()
            cluster.look()
            cluster.ask()
        cluster.check()
    cluster.assert_all_ended()
    limits_s = {
        "works": 3,
        "dies": 10,
        "silent": SILENCE_S + TIMEOUT_S + 3,
        "empty": WITHOUT_NODES_S + 3,
        "refuses": 103,
    }
    assert step <= limits_s[ending]


@pytest.fixture
def cluster() -> Cluster:
    """With two nodes."""
    made = Cluster()
    made.able = {"a", "b"}
    return made


def test_units_that_are_wanted_together_are_one_task(cluster: Cluster) -> None:
    """What its node has not begun is asked for once more, together."""
    wanted = cluster.want(3)
    (task,) = cluster.ask()
    assert (task.wanted, task.able) == (wanted, None)
    cluster.answer(task.number, lambda each: DONE if each is wanted[0] else RetryUnit(each.unit, False))
    (task,) = cluster.ask()
    assert task.wanted == wanted[1:]


def test_a_unit_that_nodes_die_of_is_found_among_others(cluster: Cluster) -> None:
    """They are asked for alone then, and only what Dask gives up alone fails."""
    wanted = cluster.want(3)
    (task,) = cluster.ask()
    cluster.ledger.lost(task.number, 0.0, killed=True)
    tasks = cluster.ask()
    assert [len(task.wanted) for task in tasks] == [1, 1, 1]
    cluster.ledger.lost(tasks[1].number, 0.0, killed=True)
    cluster.answer(tasks[0].number)
    cluster.answer(tasks[2].number)
    cluster.assert_all_ended()
    (failure,) = cluster.told[wanted[1].unit.key]
    assert isinstance(failure, Failure)
    assert failure.from_outside


def test_a_unit_may_be_lost_three_times(cluster: Cluster) -> None:
    """With nodes that die of something else. What is lost once more is taken for what they die of."""
    saved, deadly = cluster.want(1)[0], cluster.want(1)[0]
    for lost in range(4):
        first, *more = cluster.ask()
        if lost == 3:
            cluster.answer(first.number)
        for task in (first, *more):
            cluster.ledger.lost(task.number, 0.0)
    cluster.assert_all_ended()
    assert cluster.told[saved.unit.key] == [DONE]
    (failure,) = cluster.told[deadly.unit.key]
    assert isinstance(failure, Failure)


def test_a_unit_whose_nodes_are_all_gone_is_asked_of_others(cluster: Cluster) -> None:
    """A node of no use does not count, one that is left does. An answer that comes all the same changes nothing."""
    cluster.foreign = {"x"}
    cluster.want(1)
    (task,) = cluster.ask()
    assert task.able == {"a", "b"}
    cluster.able = {"b", "c"}
    assert cluster.look() == []
    cluster.able = {"c"}
    assert cluster.look() == [task.number]
    (again,) = cluster.ask()
    assert again.able == {"c"}
    cluster.answer(task.number)
    assert cluster.told["0"] == []
    cluster.answer(again.number)
    cluster.assert_all_ended()


def test_a_unit_is_sent_as_it_was_asked_for_last(cluster: Cluster) -> None:
    """Where the entry is to come as bytes, say."""
    (wanted,) = cluster.want(1)
    (task,) = cluster.ask()
    whole = replace(wanted.unit, shared=SharedCache("/a", "b", whole=True))
    cluster.answer(task.number, lambda each: RetryUnit(whole, False))
    (task,) = cluster.ask()
    assert task.wanted[0].unit == whole


def test_nodes_in_a_queue_are_waited_for() -> None:
    """As long as they are expected; after that for a while."""
    cluster = Cluster()
    cluster.want(1)
    for _ in range(10):
        cluster.now_s += WITHOUT_NODES_S
        assert cluster.ledger.looked((), (), cluster.now_s, "none", expects_more=True) == []
    cluster.look(WITHOUT_NODES_S - 1)
    assert cluster.told["0"] == []
    cluster.look(2)
    assert str(cluster.told["0"][0]) == "none is there"


def test_time_with_nothing_to_do_is_no_silence(cluster: Cluster) -> None:
    """Of the cluster's: it begins with the first task."""
    cluster.look(10 * SILENCE_S)
    cluster.want(1)
    cluster.look(1)
    (task,) = cluster.ask()
    assert cluster.look(SILENCE_S) == []
    cluster.answer(task.number)
    cluster.assert_all_ended()
    assert module._LOSSES > 1
