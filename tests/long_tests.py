"""Whether tests may take long (`make test-long`), for those in which more repeats show more."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import cycle, islice, product
from random import Random
from typing import TypeVar

import pytest

LONG = bool(os.environ.get("GENKERN_LONG_TESTS"))
T = TypeVar("T")
S = TypeVar("S")


def long_only(why: str) -> pytest.MarkDecorator:
    """Return a mark for a test that only `make test-long` runs; `why` says what is dear, or what else tests it."""
    return pytest.mark.skipif(not LONG, reason=f"{why}: make test-long")


def repeats(short: int, long: int) -> int:
    """How often to try."""
    return long if LONG else short


def covering(cases: Sequence[T], traits: Callable[[T], Iterable[Hashable]], cost: Callable[[T], float]) -> Sequence[T]:
    """All cases, or some that cost little and have every trait of the whole between them."""
    if LONG:
        return cases
    have, costs = [frozenset(traits(case)) for case in cases], [cost(case) for case in cases]
    missing, chosen = set().union(*have), []
    while missing:
        chosen.append(max(range(len(cases)), key=lambda n: len(have[n] & missing) / costs[n]))
        missing -= have[chosen[-1]]
    return [cases[n] for n in sorted(chosen)]


def spread(cases: Sequence[T], share: int) -> Sequence[T]:
    """All cases, or one of so many, spread over their order."""
    return cases if LONG else cases[::share]


def in_turns(cases: Sequence[T], share: int, turn: int) -> Sequence[T]:
    """All cases, or one of so many: others in each `turn`, so that several turns have all of them."""
    return cases if LONG else cases[turn % share :: share]


def drawn(cases: Sequence[T], count: int) -> Sequence[T]:
    """Return all cases in `make test-long`, else `count` of them, the same in every run, in their order."""
    if LONG or count >= len(cases):
        return cases
    return [cases[place] for place in sorted(Random(2026).sample(range(len(cases)), count))]


def pairs(first: Sequence[T], second: Sequence[S]) -> Sequence[tuple[T, S]]:
    """Return every pair in `make test-long`, else as few pairs as have every value of both."""
    if LONG:
        return [*product(first, second)]
    count = max(len(first), len(second))
    return [*zip(islice(cycle(first), count), islice(cycle(second), count), strict=True)]
