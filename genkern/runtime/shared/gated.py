"""Gated layers: down(silu(gate(x)) * up(x)), as modules of transformers compute it; told by trying them on numbers.

Of such a module whose gate and up are one product, silu and the multiplication are one kernel that reads that product,
where a bundle has it (genkern.runtime.routed.row_kernels): two launches and three passes over memory fewer.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from genkern.errors import GenkernError, LaunchError
from genkern.gemm.dtypes import BY_TORCH
from genkern.gemm.operand import contiguous_strides
from genkern.gemm.problem import DEFAULT_OP, INT32
from genkern.runtime.context import Context
from genkern.runtime.launch.native_call import Form, native_call
from genkern.runtime.routed.row_kernels import GATED_COLUMNS, gating, row_call
from genkern.runtime.shared.own_forward import is_given
from genkern.runtime.shared.siblings import has_hooks, with_forwards

# Of x [..., K] without K, by its dimensions. Models give (batch, tokens) or rows.
_TRIED = {2: ((1,), (3,)), 3: ((1, 1), (1, 3), (2, 1))}
# What the kernel reads of a row begins at a multiple of so many elements.
_MULTIPLE = 16
# The same product, in operations that round once more or less.
_ROUNDINGS = 4
# Of shapes that are kept, each with its launch.
_MOST_KEPT = 1024

# silu(gate) * up of two tensors of one shape, which may be parts of one product: given that twice.
GateCall = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Gate:
    """What was found out of a module: `gate` is the number of that of its two layers that goes through silu, `down` the
    name of the module that is given the product, `dimensions` those of an x with which that was tried.
    """

    gate: int
    down: str
    dimensions: frozenset[int]


def gate_of(parent: torch.nn.Module, layers: Sequence[torch.nn.Linear]) -> Gate | None:
    """How the module computes with these two layers; None where it does anything else, or is being trained.

    Its forward is run with the layers' results, and that of the module behind them, replaced by numbers.
    """
    down = _down_of(parent, layers)
    if down is None or parent.training or layers[0].out_features != layers[1].out_features:
        return None
    for gate in (0, 1):
        passed = [
            dimensions
            for dimensions, several in _TRIED.items()
            if all(_is_gated(parent, layers, gate, down, rows) for rows in several)
        ]
        if passed:
            return Gate(gate, down, frozenset(passed))
    return None


def _down_of(parent: torch.nn.Module, layers: Sequence[torch.nn.Linear]) -> str | None:
    """The only other child that has weights; all children but the layers and it have no hooks either."""
    others = {name: child for name, child in parent._modules.items() if child is not None and child not in layers}
    owning = [name for name, child in others.items() if any(True for _ in _tensors_of(child))]
    return None if len(owning) != 1 or any(map(has_hooks, others.values())) else owning[0]


def _tensors_of(module: torch.nn.Module) -> Any:
    yield from module.parameters()
    yield from module.buffers()


def _is_gated(
    parent: torch.nn.Module, layers: Sequence[torch.nn.Linear], gate: int, down: str, rows: Sequence[int]
) -> bool:
    """Whether the module gives what `down` makes of silu(gate) * up, and nothing else has a part in it."""
    weight, below = layers[0].weight, parent._modules[down]
    generator = torch.Generator().manual_seed(0)

    def numbers(width: int) -> Any:
        """Large ones among them, where limits of activations show."""
        return (10 * torch.randn((*rows, width), generator=generator)).to(weight)

    seen: list[bool] = []
    between: list[Any] = []

    def gives(result: Any) -> Callable[[Any], Any]:
        def forward(input: Any) -> Any:
            seen.append(input is x and input._version == version)
            return result

        return forward

    def last(input: Any) -> Any:
        between.append(input)
        return out

    # Versions of tensors are counted outside of inference mode alone.
    with torch.inference_mode(False), torch.no_grad(), contextlib.suppress(Exception):
        x, out = numbers(weight.shape[1]), numbers(weight.shape[1])
        version, results = x._version, [numbers(layers[0].out_features) for _ in layers]
        forwards = {layer: gives(result) for layer, result in zip(layers, results, strict=True)}
        untouched = out.clone()
        with with_forwards({**forwards, below: last}):
            found = type(parent).forward(parent, x)
        (h,) = between
        wanted = torch.nn.functional.silu(results[gate]) * results[1 - gate]
        rounding = _ROUNDINGS * torch.finfo(h.dtype).eps
        same = type(found) is type(out) and found.data_ptr() == out.data_ptr() and found.shape == out.shape
        same = same and found.stride() == out.stride() and out.equal(untouched)
        near = (
            h.shape == wanted.shape and h.dtype == wanted.dtype and torch.allclose(h, wanted, rtol=rounding, atol=1e-6)
        )
        return seen == [True, True] and same and near
    return False


class Gated:
    """The two `layers` of `parent`, of which `gate` says what it computes with them.

    `call_for` an x gives the kernel's launch, to be given both layers' product; None where the module's own forward is
    to be called: where nobody has the kernel, calls must be batch invariant (what serves some M would not serve all), a
    child was replaced or has hooks since, or the module is trained.
    """

    def __init__(
        self, parent: torch.nn.Module, layers: Sequence[torch.nn.Linear], gate: Gate, context: Context
    ) -> None:
        self.down = gate.down
        self._children = dict(parent._modules)
        self._layers = tuple(layers)
        self._plain = tuple(child for name, child in parent._modules.items() if child is not None and name != gate.down)
        self._gate, self._dimensions, self._context = gate.gate, gate.dimensions, context
        self._columns = layers[0].out_features
        self._calls: dict[object, GateCall | None] = {}
        context.let_forget(self)

    def forget(self) -> None:
        """What is tuned has changed."""
        self._calls = {}

    def call_for(self, module: torch.nn.Module, x: Any) -> GateCall | None:
        """silu(gate) * up of both layers' product with such an x, which is given twice: [..., 2 N] to [..., N]."""
        if module.training or self._context.mode.is_on or module._modules != self._children or x.is_nested:
            return None
        if any(map(has_hooks, self._plain)) or not all(map(is_given, self._layers)):
            return None
        place = x.shape, x.dtype
        try:
            return self._calls[place]
        except KeyError:
            if len(self._calls) >= _MOST_KEPT:
                self._calls.clear()
            call = self._calls[place] = self._made(x)
            return call

    def _made(self, x: Any) -> GateCall | None:
        """The kernel's launch for products of such an x, which have no gaps."""
        weight, columns, context = self._layers[0].weight, self._columns, self._context
        kernel, rows = gating(BY_TORCH[str(weight.dtype)]), math.prod(x.shape[:-1])
        if kernel is None or x.dim() not in self._dimensions or x.dtype != weight.dtype or x.device != weight.device:
            return None
        if columns % _MULTIPLE or not 0 < rows * 2 * columns < INT32:
            return None
        at = self._gate * columns
        numbers = {"gate": at, "up": columns - at, "pitch": 2 * columns, "columns": columns}
        grid = rows, -(-columns // GATED_COLUMNS)
        made = row_call(context, DEFAULT_OP, x.get_device(), kernel, grid, numbers)
        if made is None:
            return None
        gpu, launch = made
        shape = (*x.shape[:-1], columns)
        strides, dtype, half, is_failed = contiguous_strides(shape), x.dtype, self._gate, False

        def failed(error: GenkernError) -> None:
            nonlocal is_failed
            is_failed = True
            context.say(kernel.name, f"{kernel.name}: {error}: PyTorch's calls serve it")

        def by_torch(whole: Any, again: Any) -> Any:
            parts = whole.split(columns, -1)
            return torch.nn.functional.silu(parts[half]) * parts[1 - half]

        def by_kernel(whole: Any, again: Any) -> Any:
            if not is_failed:
                out = gpu.empty(shape, strides, dtype)
                try:
                    if launch((whole.data_ptr(), again.data_ptr(), out.data_ptr())):
                        return out
                except LaunchError as error:
                    failed(error)
            return by_torch(whole, again)

        return native_call(gpu, launch, Form(2, shape, strides, dtype), by_kernel, failed).call
