"""Shares: processes that share out what is to be computed, as whoever has something to compute sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Shares(Protocol):
    """So many processes."""

    count: int

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """What the function, which can be imported, makes of each item, in their order.

        That is begun now: who takes the results may do something else first.
        """
