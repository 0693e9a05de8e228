"""Gated layers: modules that compute down(silu(gate(x)) * up(x)), recognised by running them on numbers.

If gate and up of such a module are one product, one row kernel computes silu and the multiplication from that product
(genkern.runtime.routed.row_kernels). That saves two launches and three passes over memory.
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
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.native_call import Form, native_call
from genkern.runtime.merged_layers.own_forward import has_genkern_forward
from genkern.runtime.merged_layers.shared_inputs import has_hooks, with_forwards
from genkern.runtime.routed.row_kernels import GATED_COLUMNS, gating, row_call

# The shapes of x without K with which a module is tried, by number of dimensions: rows, or (batch, tokens).
_TRIED = {2: ((1,), (3,)), 3: ((1, 1), (1, 3), (2, 1))}
# The kernel assumes that its parts of a row start at a multiple of this number of elements.
_MULTIPLE = 16
# Tolerance in roundings: the module may use operations that round once more or less.
_ROUNDINGS = 4
# Cached shapes, each with its launch.
_MOST_KEPT = 1024

# Computes silu(gate) * up from two tensors of one shape, or from one product that contains both and is passed twice.
GateCall = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Gate:
    """What was found out about a module.

    gate: index of the layer, of its two, that goes through silu.
    down: name of the child that gets the gated product.
    dimensions: the numbers of dimensions of x for which the module was recognised.
    """

    gate: int
    down: str
    dimensions: frozenset[int]


def gate_of(parent: torch.nn.Module, layers: Sequence[torch.nn.Linear]) -> Gate | None:
    """Return how the module uses these two layers; None if it computes anything else, or is in training mode.

    The module's forward is run while the results of its two layers and of `down` are replaced by numbers.
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
    """Return the name of the only other child with weights.

    None if there is not exactly one, or if a child besides the layers has hooks.
    """
    others = {name: child for name, child in parent._modules.items() if child is not None and child not in layers}
    owning = [name for name, child in others.items() if any(True for _ in _tensors_of(child))]
    return None if len(owning) != 1 or any(map(has_hooks, others.values())) else owning[0]


def _tensors_of(module: torch.nn.Module) -> Any:
    yield from module.parameters()
    yield from module.buffers()


def _is_gated(
    parent: torch.nn.Module, layers: Sequence[torch.nn.Linear], gate: int, down: str, rows: Sequence[int]
) -> bool:
    """Return True if the module returns what `down` makes of silu(gate) * up, and nothing else takes part."""
    weight, below = layers[0].weight, parent._modules[down]
    generator = torch.Generator().manual_seed(0)

    def numbers(width: int) -> Any:
        """Return random numbers, some of them large, at which limits of activations show."""
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

    # PyTorch counts versions of tensors only outside of inference mode.
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
    """The two `layers` of `parent`, which is a gated module as `gate` describes."""

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
        """Drop all launches: bundles may have changed."""
        self._calls = {}

    def call_for(self, module: torch.nn.Module, x: Any) -> GateCall | None:
        """Return the kernel's launch for x of this shape and type; None if the module's own forward must be called.

        The launch takes the product of both layers twice, [..., 2 N], and returns [..., N]. None if no bundle has the
        kernel, if calls must be batch-invariant (the kernel might serve some M only), if a child was replaced or has
        got hooks, or in training mode.
        """
        if module.training or self._context.mode.is_on or module._modules != self._children or x.is_nested:
            return None
        if any(map(has_hooks, self._plain)) or not all(map(has_genkern_forward, self._layers)):
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
        """Return the kernel's launch for contiguous products of an x like this one; None if there is none."""
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
