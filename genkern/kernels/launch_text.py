"""The launch code of generated modules: a `Call` as Python text that serves every config with the same kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from genkern.gemm.parameter import PARAMETERS
from genkern.kernels.contract.argument import (
    BINARY,
    Argument,
    Constant,
    Copied,
    Counters,
    Descriptor,
    Descriptors,
    Integer,
    Leading,
    Pointer,
    Stride,
    Workspace,
)
from genkern.kernels.contract.call import Call, Kernel
from genkern.kernels.contract.expression import Value, names_in, spelled
from genkern.kernels.contract.gluon_tile import WIDEST
from genkern.kernels.contract.variant import Variant
from genkern.kernels.families.common import CONSTANTS

# Width in characters up to which arguments are joined into lines. A longer argument has a line of its own.
_LINE = 100


@dataclass(frozen=True)
class LaunchText:
    """Python text of one launch.

    kernel: expression for the kernel.
    grid: expression for the grid.
    arguments: lines of arguments.
    constants: lines of constants.
    options: lines of options.
    cluster: programs in a cluster.
    """

    kernel: str
    grid: str
    arguments: tuple[str, ...]
    constants: tuple[str, ...]
    options: tuple[str, ...]
    cluster: int


@dataclass(frozen=True)
class CallText:
    """Python text of one call. Equal for calls that differ only in the text of their main kernel.

    name: the form's name.
    definitions: names and expressions that the launches use.
    launches: the launches in order.
    workspace_definitions: names and expressions that the sizes of workspace and counters use.
    workspace: expression for the workspace's elements.
    counters: expression for the number of counters.
    """

    name: str
    definitions: tuple[tuple[str, str], ...]
    launches: tuple[LaunchText, ...]
    workspace_definitions: tuple[tuple[str, str], ...]
    workspace: str
    counters: str

    @property
    def has_workspace(self) -> bool:
        """Whether a call may need workspace or counters."""
        return (self.workspace, self.counters) != ("0", "0")


def call_text(name: str, call: Call, main: Variant, stacked: frozenset[str]) -> CallText:
    """Return the Python text of a call.

    `main` is the variant of the config's main kernel. `stacked` are the operands with several matrices.
    """
    launches = tuple(_launch(kernel, kernel.variant == main, stacked) for kernel in call.kernels)
    launched = [value for kernel in call.kernels for value in _values(kernel)]
    return CallText(
        name,
        _needed(call, launched),
        launches,
        _needed(call, [call.workspace, call.counters]),
        _text(call.workspace),
        _text(call.counters),
    )


def _needed(call: Call, values: list[Value]) -> tuple[tuple[str, str], ...]:
    """Return the call's definitions that the values use, directly or through other definitions."""
    needed = frozenset().union(*map(names_in, values)) if values else frozenset[str]()
    for name, value in reversed(call.definitions):
        if name in needed:
            needed |= names_in(value)
    return tuple((name, _text(value)) for name, value in call.definitions if name in needed)


def _values(kernel: Kernel) -> list[Value]:
    numbers = [argument.value for argument in kernel.arguments if isinstance(argument, Integer)]
    return [*kernel.grid, *numbers]


def _launch(kernel: Kernel, is_main: bool, stacked: frozenset[str]) -> LaunchText:
    options = [f'"{name}": {_text(value)}' for name, value in kernel.options]
    return LaunchText(
        "globals()[config.kernel]" if is_main else kernel.variant.name,
        f"({', '.join(map(_text, kernel.grid))})",
        _lines([_given(argument, stacked) for argument in kernel.arguments if not isinstance(argument, Constant)]),
        _constants(kernel),
        ("_options_of(config)",) if kernel.takes_amd_options else _dictionary(options),
        kernel.variant.cluster,
    )


def _lines(texts: Sequence[str]) -> tuple[str, ...]:
    """Join the texts with commas, as many to a line as fit, with a comma after the last."""
    lines: list[str] = []
    for text in texts:
        if "\n" in text:
            lines += f"{text},".split("\n")
        elif lines and len(lines[-1]) + len(text) < _LINE:
            lines[-1] += f" {text},"
        else:
            lines.append(f"{text},")
    return tuple(lines)


def _constants(kernel: Kernel) -> tuple[str, ...]:
    constants = tuple(argument for argument in kernel.arguments if isinstance(argument, Constant))
    if constants == CONSTANTS:
        return ("_constants_of(config)",)
    return _dictionary([f'"{constant.name}": {_constant(constant)}' for constant in constants])


def _dictionary(items: Sequence[str]) -> tuple[str, ...]:
    *lines, last = _lines(["{" + items[0], *items[1:]])
    return (*lines, last.removesuffix(",") + "}")


def _constant(constant: Constant) -> str:
    if constant.value == BINARY:
        return "config.binary"
    return f'"{constant.value}"' if isinstance(constant.value, str) else _text(constant.value)


def _given(argument: Argument, stacked: frozenset[str]) -> str:
    if isinstance(argument, Pointer):
        return f'operands["{argument.operand}"]'
    if isinstance(argument, Descriptor):
        return _descriptor(argument, stacked)
    if isinstance(argument, Descriptors):
        owners = f", {argument.owners}" if argument.owners > 1 else ""
        most = "" if argument.most == WIDEST else f", most={_text(argument.most)}"
        each = _descriptor(argument.each, stacked)
        return f"*({each}\n  for *_, WIDTH in parts_of({_text(argument.width)}{owners}{most}))"
    if isinstance(argument, Integer):
        return _text(argument.value)
    if isinstance(argument, Leading):
        return f'_leading(operands["{argument.operand}"])'
    if isinstance(argument, Stride):
        return f'operands["{argument.operand}"].stride(0)'
    assert isinstance(argument, (Workspace, Counters))
    return 'operands["workspace"]' if isinstance(argument, Workspace) else 'operands["counters"]'


def _descriptor(descriptor: Descriptor, stacked: frozenset[str]) -> str:
    matrix = f'operands["{descriptor.operand}"]' + ".T" * descriptor.transposed
    if isinstance(descriptor, Copied):
        matrix = f'_copy_of({matrix}, operands["workspace"], {_text(descriptor.first)}, {_text(descriptor.pitch)})'
    if descriptor.operand in stacked:
        matrix = f"_as_one({matrix.replace('.T', '.mT')})"
    outer, inner = map(_text, descriptor.box)
    if not descriptor.swizzled:
        return f"TensorDescriptor.from_tensor({matrix}, [{outer}, {inner}])"
    return f"_gluon_descriptor({matrix}, [{outer}, {inner}])"


def _text(value: Value) -> str:
    return spelled(value, lambda name: f"config.{name}" if name in PARAMETERS.by_name else name)
