"""Groups: rows of A that go to one of many weights each, as a router sends tokens to experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from genkern.gemm.operand import Operand

# What a made-up router draws for in memory: so many numbers, one for each row and group.
MOST_DRAWN = 2**26
# Beyond so many standard deviations nothing is expected.
_DEVIATIONS = 6


@dataclass(frozen=True)
class Groups:
    """How the rows of a problem's A are shared among `count` groups, each with a weight [K, N] of its own.

    Each of the problem's M tokens has `top_k` rows, in as many groups. Without a `capacity` the rows of a group come
    right behind those of the group before, and the index operand `ends` [count] says where each group's end; with one,
    every group has memory for so many rows, and `counts` [count] says how many it has: kernels touch no others.
    `slots` [M * top_k], where there is one, has for each row in that order token * top_k + number, its slot: A is the
    tokens themselves then, [M, K], if they are `gathered`; and C the sums of each token's rows, if these are `summed`.
    Groups are drawn for timing and for checks from `seed`, evenly or `skewed`.
    """

    count: int
    top_k: int = 1
    capacity: int = 0
    gathered: bool = False
    summed: bool = False
    skewed: bool = False
    seed: int = 0

    def __bool__(self) -> bool:
        return self.count > 0

    @property
    def sorted_slots(self) -> bool:
        """Whether rows have slots."""
        return self.gathered or self.summed

    @property
    def index(self) -> str:
        """The name of the operand that says where groups end, or how many rows they have."""
        return "counts" if self.capacity else "ends"

    def rows(self, tokens: int) -> int:
        """Rows of all groups that there is memory for."""
        return self.count * self.capacity or tokens * self.top_k

    def most_tiles(self, tokens: int, block_m: int) -> int:
        """Tiles of block_m rows, each of one group, that there are at most, however the rows are shared."""
        if self.capacity:
            return self.count * -(-self.capacity // block_m)
        rows = tokens * self.top_k
        return (rows + min(self.count, rows) * (block_m - 1)) // block_m

    def expected_used(self, tokens: int) -> float:
        """Groups that have any row, on average where they are chosen evenly."""
        share = self.top_k / self.count
        return self.count * (1 - (1 - share) ** tokens)

    def expected_tiles(self, tokens: int, block_m: int) -> int:
        """About how many tiles of block_m rows there are, where rows are shared evenly."""
        return max(1, round(self.count * _tiles_of_group(tokens, self.top_k / self.count, block_m)))

    def usual_rows(self, tokens: int) -> int:
        """Rows that few groups have more of, where rows are shared evenly: the mean and two standard deviations."""
        share = self.top_k / self.count
        return max(1, round(tokens * share + 2 * math.sqrt(tokens * share * (1 - share))))

    def operands(self, tokens: int) -> tuple[Operand, ...]:
        """The index operands, in the order in which kernels take them."""
        index = Operand(self.index, "index", (self.count,), "int32")
        return (index, Operand("slots", "index", (tokens * self.top_k,), "int32")) if self.sorted_slots else (index,)

    def refusal(self, tokens: int) -> str:
        """Why there are no such groups, or ""."""
        if self.top_k > self.count:
            return f"{self.top_k} groups of {self.count} are none that a token goes to"
        if self.capacity and tokens * self.top_k > self.count * self.capacity:
            return f"{self.count} groups of {self.capacity} rows have no room for {tokens * self.top_k} rows"
        if tokens * self.count > MOST_DRAWN:
            return f"rows times groups are more than {MOST_DRAWN:,}"
        return ""

    def values(self, tokens: int, operand: Operand) -> Any:
        """The values of an index operand that timing and checks have, int32 on the CPU: a tensor that is nobody's."""
        counts, slots = _drawn(tokens, self.count, self.top_k, self.skewed, self.seed)
        if operand.name == "slots":
            return slots.clone()
        return counts.clamp(max=self.capacity) if self.capacity else counts.cumsum(0).to(counts.dtype)


# Of a problem whose rows all have one weight.
NO_GROUPS = Groups(0)


# Asked of every config of a space.
@lru_cache(maxsize=4096)
def _tiles_of_group(tokens: int, share: float, block_m: int) -> float:
    """On average, where each token goes to the group with this probability: the sum, over i, of that of more than
    i * block_m rows; these are binomial, and of many nearly normal.
    """
    mean, deviation = tokens * share, math.sqrt(tokens * share * (1 - share))
    found = 1 - (1 - share) ** tokens
    for rows in range(block_m, math.ceil(mean + _DEVIATIONS * deviation), block_m):
        beyond = (rows + 0.5 - mean) / max(deviation, 1e-9)
        found += 0.5 * math.erfc(beyond / math.sqrt(2))
    return found


@lru_cache(maxsize=4)
def _drawn(tokens: int, groups: int, top_k: int, skewed: bool, seed: int) -> tuple[Any, Any]:
    draw: Callable[..., tuple[Any, Any]] = routing
    return draw(tokens, groups, top_k, skewed, seed)


# Its text is in generated modules as well.
def routing(tokens, groups, top_k, skewed, seed):  # type: ignore[no-untyped-def]
    """Rows of each group [groups], and slots (token * top_k + number) by group [tokens * top_k], int32 on the CPU.

    Each token has top_k different groups, drawn by Gumbel noise on the logarithm of their popularity (Kool, van Hoof
    and Welling, "Stochastic beams and where to find them", ICML 2019): that is even, or where skewed 1 / rank.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    rank = 1.0 + torch.randperm(groups, generator=generator)
    noise = -torch.empty(tokens, groups).exponential_(generator=generator).log()
    chosen = (noise - rank.log() if skewed else noise).topk(top_k).indices.flatten()
    slots = chosen.argsort(stable=True)
    return torch.bincount(chosen, minlength=groups).to(torch.int32), slots.to(torch.int32)
