"""`Shares`: the interface of a pool of processes among which a computation is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Shares(Protocol):
    """A pool of `count` processes."""

    count: int

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield the function's result for each item, in the order of the items. The function must be importable.

        The work begins with this call, so the caller may do something else before it reads the results.
        """
