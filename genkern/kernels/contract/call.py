"""`Call`: the kernels that one call of a config launches, as symbolic data that holds for every config of a form."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.kernels.argument import Argument
from genkern.kernels.contract.variant import Variant
from genkern.kernels.expression import Value

Options = tuple[tuple[str, Value], ...]


@dataclass(frozen=True)
class Kernel:
    """One kernel of a call.

    variant: the kernel's text.
    arguments: its arguments in the order of its parameters, constants last.
    grid: number of programs along x, y and z.
    options: options of Triton's compiler.
    takes_amd_options: if True, the AMD options that the config sets follow `options`.
    steps: pairs of names: a pointer, and the argument that says how many elements lie between one product of a batch
        and the next (`for_batch`) or between the weights of one group and the next (`for_groups`).
    walks_batch: True if the programs walk over the tiles of all products of a batch. The grid then has no third
        dimension, and one binary serves every distance between products.
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
    """Everything that one call of a config launches, in order, with the memory that it needs.

    kernels: the kernels, in the order of their launches.
    definitions: named values that the grids and arguments use. Each may use the names defined before it.
    workspace: size of the workspace in elements of the accumulator's type.
    counters: number of int32 counters.
    """

    kernels: tuple[Kernel, ...]
    definitions: tuple[tuple[str, Value], ...] = ()
    workspace: Value = 0
    counters: Value = 0
