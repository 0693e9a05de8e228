"""`Call`: the kernels that one call of a config launches, as symbolic data that holds for every config of a form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace

from genkern.errors import InputError
from genkern.gemm.parameter import Parameter
from genkern.kernels.contract.argument import Argument, Constant, Integer, parameters_of
from genkern.kernels.contract.expression import Expression, Value, name, names_in
from genkern.kernels.contract.variant import Variant

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

    @property
    def names(self) -> frozenset[str]:
        """The names that the call's expressions use."""
        values: list[object] = [self.workspace, self.counters, *(value for _, value in self.definitions)]
        for kernel in self.kernels:
            values += [*kernel.grid, *(value for _, value in kernel.options), *kernel.arguments]
        return frozenset[str]().union(*map(names_in, _expressions(values)))

    def given(self, number: int, parameters: Iterable[Parameter]) -> Call:
        """Return the call in which kernel `number` has an argument for each of these parameters.

        Parameters that the call's expressions already use get no argument, and a kernel in a file of its own gets none.
        Raises InputError if the kernel has another argument with the name of a new one.
        """
        kernel = self.kernels[number]
        own = [parameter for parameter in parameters if parameter.name not in self.names]
        if not own or not kernel.variant.in_module:
            return self
        taken = {each.name for each in parameters_of(kernel.arguments)}
        if clash := [each for each in own if each.argument in taken]:
            raise InputError(
                f"parameter {clash[0].name}: {kernel.variant.name} has another argument {clash[0].argument}: "
                "take another name"
            )
        added = [(Integer if each.at_run_time else Constant)(each.argument, name(each.name)) for each in own]
        # Constants are last.
        arguments = sorted((*kernel.arguments, *added), key=lambda each: isinstance(each, Constant))
        kernels = list(self.kernels)
        kernels[number] = replace(kernel, arguments=tuple(arguments))
        return replace(self, kernels=tuple(kernels))


def _expressions(values: Iterable[object]) -> Iterator[Expression]:
    for value in values:
        if isinstance(value, Expression):
            yield value
        elif isinstance(value, tuple):
            yield from _expressions(value)
        elif isinstance(value, Argument):
            yield from _expressions(getattr(value, field.name) for field in fields(value))
