"""The farm of a driver process: what it asks the parent's for, and whom it tells of what comes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_gemms import target_of

from genkern.compile.cache import BinaryCache, Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.farm import Farm
from genkern.gemm.records import Binary, Outcome, Resources
from genkern.kernels.kernel import KernelSpec, Target
from genkern.tuning.processes.asking_farm import AskingFarm, NoFarmError

BINARY, FAILURE = Binary("a", "/entry", "f", Resources()), Failure("b", Outcome.COMPILE_FAILED, "refused")


def job(key: str) -> CompileJob:
    return CompileJob(key, "/module.py", KernelSpec("f", "", (), (), (), ()), Target("cuda", 90, 32), "/cache", 1.0)


@pytest.fixture
def said() -> list[Any]:
    return []


@pytest.fixture
def farm(said: list[Any], tmp_path: Path) -> AskingFarm:
    parents = Farm(BinaryCache(tmp_path), target_of("sm_90"), "3.7", jobs=1, timeout_s=1)
    return AskingFarm(parents, lambda *message: said.append(message))


def test_each_size_has_a_number(farm: AskingFarm, said: list[Any]) -> None:
    """By which the parent's farm keeps them apart; each is told of its own, once, also where both want the same."""
    told: list[Any] = []
    for owner in ("one", "next"):
        farm.order(owner, [(0, job("a"))], lambda key, result, owner=owner: told.append((owner, key, result)))  # type: ignore[misc]
    farm.set_background("next", background=True)
    assert said == [("order", 0, [(0, job("a"))]), ("order", 1, [(0, job("a"))]), ("stand", 1, True)]
    for number in (1, 0, 0):
        farm.receive(number, "a", BINARY)
    assert told == [("next", "a", BINARY), ("one", "a", BINARY)]


def test_what_is_dropped_is_not_told(farm: AskingFarm, said: list[Any]) -> None:
    """A key, or all of an owner, which has another number when it comes again."""
    told: list[str] = []

    def order(*keys: str) -> None:
        farm.order("one", [(0, job(key)) for key in keys], lambda key, result: told.append(key))

    order("a", "b")
    farm.drop("one", ["a"])
    farm.receive(0, "a", BINARY)
    farm.receive(0, "b", FAILURE)
    assert told == ["b"]
    farm.drop("one")
    farm.drop("one")
    order("c")
    assert [message[:2] for message in said] == [("order", 0), ("drop", 0), ("drop", 0), ("order", 1)]
    farm.receive(0, "c", BINARY)
    assert told == ["b"]


def test_without_a_parent_everybody_is_told(farm: AskingFarm, said: list[Any]) -> None:
    """Who waits, and who comes: nobody waits for ever."""
    told: list[Any] = []
    farm.order("one", [(0, job("a"))], lambda *what: told.append(what))
    farm.lose()
    farm.order("next", [(0, job("b"))], lambda *what: told.append(what))
    farm.drop("one")
    assert [key for key, _ in told] == ["a", "b"]
    assert all(isinstance(error, NoFarmError) for _, error in told)
    assert len(said) == 1
