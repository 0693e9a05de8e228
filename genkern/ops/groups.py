"""`Groups`: rows of A in groups, each with a weight of its own, as when a router sends tokens to experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from genkern.gemm.operand import Operand

# Largest number of random numbers that the synthetic router draws, one per token and group. They are held in memory.
MOST_DRAWN = 2**26
# Group sizes beyond this many standard deviations are neglected.
_DEVIATIONS = 6


@dataclass(frozen=True)
class Groups:
    """How the rows of A are divided among groups, each of which has a weight [K, N] of its own.

    Each of the problem's M tokens has `top_k` rows in as many groups. The index operand is `ends` or `counts`.

    count: number of groups.
    top_k: rows per token.
    capacity: 0 if each group's rows directly follow the rows of the group before; `ends` [count] says where each group
        ends. Else each group has memory for this many rows, and `counts` [count] says how many of them exist; kernels
        touch no other rows.
    gathered: True if A is the tokens [M, K], and kernels gather the rows of the groups from it.
    summed: True if a row of C is the sum of a token's rows.
    skewed: True if the synthetic groups for timing and checks are unequal (see `routing`).
    seed: seed of the synthetic groups.

    If `gathered` or `summed`, the operand `slots` [M * top_k] has the slot of each row in the order of groups: token *
    top_k + number.
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
        """Whether the problem has the operand `slots`."""
        return self.gathered or self.summed

    @property
    def index(self) -> str:
        """Name of the operand that says where groups end or how many rows they have."""
        return "counts" if self.capacity else "ends"

    def rows(self, tokens: int) -> int:
        """Return the rows of all groups for which memory exists."""
        return self.count * self.capacity or tokens * self.top_k

    def most_tiles(self, tokens: int, block_m: int) -> int:
        """Return the largest number of tiles of `block_m` rows, each of one group, over all divisions of the rows."""
        if self.capacity:
            return self.count * -(-self.capacity // block_m)
        rows = tokens * self.top_k
        return (rows + min(self.count, rows) * (block_m - 1)) // block_m

    def expected_used(self, tokens: int) -> float:
        """Return the mean number of groups that have any rows, if groups are chosen evenly."""
        share = self.top_k / self.count
        return self.count * (1 - (1 - share) ** tokens)

    def expected_tiles(self, tokens: int, block_m: int) -> int:
        """Return the mean number of tiles of `block_m` rows, rounded, if groups are chosen evenly."""
        return max(1, round(self.count * _tiles_of_group(tokens, self.top_k / self.count, block_m)))

    def usual_rows(self, tokens: int) -> int:
        """Return a number of rows that few groups exceed if groups are chosen evenly.

        It is the mean plus two standard deviations.
        """
        share = self.top_k / self.count
        return max(1, round(tokens * share + 2 * math.sqrt(tokens * share * (1 - share))))

    def operands(self, tokens: int) -> tuple[Operand, ...]:
        """Return the index operands in the order in which kernels take them."""
        index = Operand(self.index, "index", (self.count,), "int32")
        return (index, Operand("slots", "index", (tokens * self.top_k,), "int32")) if self.sorted_slots else (index,)

    def refusal(self, tokens: int) -> str:
        """Return why such groups are impossible, or ""."""
        if self.top_k > self.count:
            return f"a token cannot have rows in {self.top_k} groups: there are {self.count}"
        if self.capacity and tokens * self.top_k > self.count * self.capacity:
            return f"{self.count} groups of {self.capacity} rows have no room for {tokens * self.top_k} rows"
        if tokens * self.count > MOST_DRAWN:
            return f"rows times groups are more than {MOST_DRAWN:,}"
        return ""

    def values(self, tokens: int, operand: Operand) -> Any:
        """Return the values of an index operand for timing and checks: int32, on the CPU, in a new tensor.

        Counts above the capacity are reduced to it.
        """
        counts, slots = _drawn(tokens, self.count, self.top_k, self.skewed, self.seed)
        if operand.name == "slots":
            return slots.clone()
        return counts.clamp(max=self.capacity) if self.capacity else counts.cumsum(0).to(counts.dtype)


# Placeholder for problems whose rows all have the same weight.
NO_GROUPS = Groups(0)


# Cached because the cost model calls it for every config.
@lru_cache(maxsize=4096)
def _tiles_of_group(tokens: int, share: float, block_m: int) -> float:
    """Return the mean number of tiles of a group if each token goes to it with probability `share`.

    It is the sum over i of the probability that the group has more than i * block_m rows. The number of rows is
    binomial, for which the normal distribution is used.
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


# The text of this function is copied into generated modules.
def routing(tokens, groups, top_k, skewed, seed):  # type: ignore[no-untyped-def]
    """Return the rows of each group [groups], and the slots (token * top_k + number) by group [tokens * top_k].

    Both are int32 on the CPU. Each token has top_k different groups, drawn by Gumbel noise on the logarithm of their
    popularity (Kool, van Hoof and Welling, "Stochastic beams and where to find them", ICML 2019). All groups are
    equally popular, or if `skewed` their popularity is 1 / rank.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    rank = 1.0 + torch.randperm(groups, generator=generator)
    noise = -torch.empty(tokens, groups).exponential_(generator=generator).log()
    chosen = (noise - rank.log() if skewed else noise).topk(top_k).indices.flatten()
    slots = chosen.argsort(stable=True)
    return torch.bincount(chosen, minlength=groups).to(torch.int32), slots.to(torch.int32)
