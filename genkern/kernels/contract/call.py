"""Call: the kernels that one call of a config launches, as data that hangs on no config's numbers."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.kernels.argument import Argument
from genkern.kernels.contract.variant import Variant
from genkern.kernels.expression import Value

Options = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of a call.

    `arguments` are those of its parameters, constants last. `grid` is how many programs there are in three dimensions.
    `options` are Triton's; with `takes_amd_options` those of a config's AMD fields that are set come after them.
    `steps`: names of pointers, and of how far they go from one product of a batch to the next (`for_batch`), or from
    the weight of one group to the next (`for_groups`).
    `walks_batch`: its programs walk over the tiles of all products of a batch, so that its grid has no third dimension,
    and its binary is for any step from one product to the next.
    """

    variant: Variant
    arguments: tuple[Argument, ...]
    grid: tuple[Value, Value, Value]
    options: Options
    takes_amd_options: bool = False
    steps: tuple[tuple[str, str], ...] = ()
    walks_batch: bool = False


@dataclass(frozen=True)
class Call:
    """What one call of a config launches, in order, and what it needs.

    `definitions` are values by name, each in terms of those before it, that the others are in terms of. `workspace` is
    in elements of the accumulators' type, `counters` in elements of int32.
    """

    kernels: tuple[Kernel, ...]
    definitions: tuple[tuple[str, Value], ...] = ()
    workspace: Value = 0
    counters: Value = 0
