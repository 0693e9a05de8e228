"""The rule of runs whose winners must add up K in one order (--batch_invariant): it leaves out all other orders.

Not about speed, as other rules are, but what somebody asked for; no space file names it.
"""

from __future__ import annotations

from collections.abc import Callable

from genkern.gemm.config import Config
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of

_NAME = "sums other than "
# Rules that drop a family where another one wins, which has other orders.
BETWEEN_FAMILIES = frozenset({"dot_for_one_row", "tiled_beside_tma"})


def order_rule(order: str) -> str:
    """The name of the rule that leaves configs of that order, as sums_of says it."""
    return _NAME + order


def order_of(name: str) -> str | None:
    """The order that a rule of that name leaves; None for any other rule."""
    return name.removeprefix(_NAME) if name.startswith(_NAME) else None


def other_order(order: str) -> Callable[[GemmProblem, Config, Gpu], bool]:
    """The rule that leaves configs of that order."""

    def drop(problem: GemmProblem, config: Config, gpu: Gpu) -> bool:
        """another order of sums than the one that is asked for.

        genkern: rows have the same bits in all batches where their kernels add up K in one order.
        """
        return sums_of(problem, config, gpu.arch) != order

    return drop
