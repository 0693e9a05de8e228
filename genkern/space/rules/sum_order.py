"""The rule for runs whose winners must all add up K in one order (--batch_invariant).

Unlike other rules it implements a user's request instead of a judgement about speed. Space files do not name it.
"""

from __future__ import annotations

from collections.abc import Callable

from genkern.gemm.columns import Mask
from genkern.gemm.config_table import ConfigTable
from genkern.gemm.gpus import Gpu
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of

_NAME = "sums other than "
# Rules that drop a family because another family is faster. That family may lack the requested order, so these rules
# are not applied.
BETWEEN_FAMILIES = frozenset({"dot_for_one_row", "tiled_beside_tma"})


def order_rule(order: str) -> str:
    """Return the name of the rule that keeps only configs of this order, given as `sums_of` returns it."""
    return _NAME + order


def order_of(name: str) -> str | None:
    """Return the order that a rule of this name keeps; None for any other rule."""
    return name.removeprefix(_NAME) if name.startswith(_NAME) else None


def other_order(order: str) -> Callable[[GemmProblem, ConfigTable, Gpu], Mask]:
    """Return the rule that keeps only configs of this order."""

    def drop(problem: GemmProblem, configs: ConfigTable, gpu: Gpu) -> Mask:
        """Order of sums other than the requested one.

        genkern: a row has the same bits in every batch if all kernels for it add up K in one order.
        """
        # An order of sums is a text, which is computed for one config at a time. It does not depend on GROUP_SIZE_M.
        alike = configs.without("GROUP_SIZE_M")
        others = [sums_of(problem, config, gpu.arch) != order for config in alike.configs()]
        if not alike.shape:
            return others[0]
        import numpy as np

        return np.array(others, dtype=bool).reshape(alike.shape)

    return drop
