"""Crew: processes share out items; who is lost is done without, and all end with whoever asks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

from genkern.errors import InputError
from genkern.gemm.gpus import gpu_for_arch
from genkern.gemm.problem import GemmProblem
from genkern.search.guided.guided import foresee
from genkern.space.space import load_space
from genkern.tuning.processes.crew import Crew, crew_of
from genkern.tuning.processes.foresight import foreseen


def squared(number: int) -> tuple[int, int]:
    """And by whom."""
    if number == 13:
        raise InputError("not this one")
    if number < 0:
        os.kill(os.getpid(), signal.SIGKILL) if os.getpid() != PARENT else None
    time.sleep(0.01)
    return number * number, os.getpid()


PARENT = os.getpid()


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew(3)
    yield crew
    crew.close()


def test_items_are_shared_out_and_come_in_their_order(crew: Crew) -> None:
    """More than there are processes, one list after another; none is computed here."""
    for _ in range(2):
        found = list(crew.each(squared, range(10)))
        assert [square for square, _ in found] == [number * number for number in range(10)]
        assert len({pid for _, pid in found}) == 3
        assert os.getpid() not in {pid for _, pid in found}
    assert list(crew.each(squared, [])) == []


def test_they_are_begun_before_anybody_waits() -> None:
    """And whoever asks has something to do then, once."""
    did: list[str] = []
    crew = Crew(2, lambda: did.append("imported"))
    try:
        begun = crew.each(squared, [2, 3])
        assert did == ["imported"]
        assert [square for square, _ in begun] == [4, 9]
        list(crew.each(squared, [4]))
        assert did == ["imported"]
    finally:
        crew.close()


def test_what_the_function_raises_is_raised(crew: Crew) -> None:
    """Answers that nobody waits for then are no answers to what is asked next."""
    with pytest.raises(InputError, match="not this one"):
        list(crew.each(squared, [13, 1, 2, 3, 4]))
    assert [square for square, _ in crew.each(squared, range(5, 12))] == [number * number for number in range(5, 12)]


def test_lost_processes_are_done_without(crew: Crew) -> None:
    """Whoever is left computes, in the end whoever asks."""
    assert [square for square, _ in crew.each(squared, [-1, 2, 3])] == [1, 4, 9]
    found = list(crew.each(squared, [-1, -2, -3, -4]))
    assert [square for square, _ in found] == [1, 4, 9, 16]
    assert {pid for _, pid in found} == {os.getpid()}
    assert [square for square, _ in crew.each(squared, [5])] == [25]


@pytest.mark.parametrize(
    ("arch", "space", "problem"),
    [("sm_90", None, GemmProblem(4096, 4096, 4096)), ("gfx942", "amd_quick", GemmProblem(17, 5120, 6912))],
)
def test_a_crew_foresees_what_one_process_does(arch: str, space: str | None, problem: GemmProblem) -> None:
    """The same configs for the same reasons; the model's octaves differ by their last digit at most."""
    gpu = gpu_for_arch(arch)
    what = load_space(space, arch, problem.op), problem, gpu, foresee
    crew = Crew(3)
    try:
        there = foreseen(*what, crew)
        (rows, prior), (its, other) = foreseen(*what).model, there.model  # type: ignore[misc]
        here = foreseen(*what).pruned
        assert there.pruned == here
        assert [*there.pruned.illegal] == [*here.illegal]
        assert its == rows
        assert np.abs(prior.octaves - other.octaves).max() <= 1.01e-4
        assert prior.is_learned == other.is_learned
        assert (prior.alike(7) == other.alike(7)).all()
    finally:
        crew.close()


@pytest.mark.parametrize(("tuners", "cores", "count"), [(1, 16, 8), (1, 64, 8), (1, 8, 4), (1, 4, None), (2, 16, None)])
def test_there_is_one_where_cores_are_idle(tuners: int, cores: int, count: int | None) -> None:
    with crew_of(tuners, cores, lambda: None) as crew:
        assert (crew and crew.count) == count
