"""Shared: linear layers to which one module gives the same tensor, computed as one product."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm, is_plain_call, is_traced
from genkern.runtime.calls.plain_tensor import PLAIN
from genkern.runtime.merged_layers.gated import Gated
from genkern.runtime.merged_layers.invariant_mode import LayerMode, as_rows, layer_mode_of
from genkern.runtime.merged_layers.merged_weight import MergedWeight
from genkern.runtime.merged_layers.own_forward import give_forward
from genkern.runtime.merged_layers.shared_inputs import has_hooks

# With more rows separate products are as fast, and readers of a part of the wide result are slower.
_MOST_ROWS = 1024
_any_autocast = torch._C._is_any_autocast_enabled
# torch.ops.genkern.linears: a function of x, weights and biases.
Operator = Callable[[Any, list[Any], list[Any]], Any]


class _Computed:
    """The product that the first layer computed from `x`, for the layers after it; `left` counts parts not yet taken.

    A part is handed out once, for the same tensor at the same version.
    """

    __slots__ = "left", "mode", "parts", "version", "x"

    def __init__(self, x: Any, version: int | None, mode: Any, parts: list[Any]) -> None:
        self.x, self.version, self.mode, self.parts = x, version, mode, parts
        self.left = len(parts)

    def take(self, number: int) -> Any:
        """Return the part with this index; None if it was handed out before."""
        part, self.parts[number] = self.parts[number], None
        self.left -= part is not None
        return part


class _ForwardRun(threading.local):
    """One run of the module's forward in one thread.

    A product is never used in a later run: weights may have changed, or a graph may have written x again.
    """

    is_open = False
    computed: _Computed | None = None


class _Traced:
    """The state of a run while torch.compile traces the module: the tensors are those of its graph.

    It has the same purpose as _Turn, without threads.
    """

    is_open = False
    x: Any = None
    parts: list[Any] | None = None


class SharedProduct:
    """Layers in the order of their calls, computed as one product if their merged weight has a winner.

    In every other case each layer is called by itself: also if gradients are enabled, under autocast, modes and
    transforms of PyTorch, for subclasses of tensors, during export, and after a weight was replaced or moved. Programs
    that torch.compile traces call `operator`, if it is given.

    If calls must be batch-invariant, the layers' `way` decides, which is the same for every x.
    """

    def __init__(
        self, layers: Sequence[torch.nn.Linear], gemm: Gemm, context: Context, operator: Operator | None = None
    ) -> None:
        self.layers = tuple(layers)
        self.merged = MergedWeight(layers)
        self._gemm, self._context, self._operator = gemm, context, operator
        # Formatted here, since Dynamo of PyTorch 2.11 cannot trace the formatting.
        self._named = f"linear layers {self.merged.rows} that share an input"
        self._turn, self._traced = _ForwardRun(), _Traced()
        self._is_shared = True
        self._served: dict[object, bool] = {}
        # By the mode's name.
        self._ways: dict[str, LayerMode] = {}
        context.let_forget(self)

    def forget(self) -> None:
        """Drop what was found: bundles may have changed."""
        self._served, self._ways = {}, {}

    def way(self) -> LayerMode:
        """Return how the layers are called in the current mode."""
        mode, ways = self._context.mode, self._ways
        way = ways.get(mode.name)
        if way is None:
            way = layer_mode_of([layer.weight for layer in self.layers], self.layers[0].bias is not None, self._context)
            # If the mode was switched meanwhile, the result may belong to either mode.
            if self._context.mode is mode:
                ways[mode.name] = way
            if way is LayerMode.APART:
                line = "layers that share an input are called one by one, in the order of sums that each has"
                self._context.say((id(self), way), line)
        return way

    def part(self, number: int, layer: Any, x: Any) -> Any:
        """Return the result of the layer with this index for x; None if the layer must be called by itself.

        Raises InvarianceError if a call by itself would have another order of sums.
        """
        # A copy of a layer has this function, but another weight.
        if layer is not self.layers[number]:
            return self._apart()
        if is_traced():
            part = self._traced_part(number, x)
            return self._apart() if part is None else part
        turn, mode = self._turn, self._context.mode
        version = None if x.is_inference() else x._version
        computed = turn.computed
        if computed is not None and computed.x is x and computed.version == version and computed.mode is mode:
            part = computed.take(number)
            if part is not None:
                return part
        # PyTorch counts no versions of inference tensors. The trial has shown that the module does not change x between
        # the layers, but hooks that were added since might.
        keeps = turn.is_open and not (version is None and any(map(has_hooks, self.layers)))
        parts = self._computed(x) if keeps or self.way() is LayerMode.TOGETHER else None
        if parts is None:
            return self._apart()
        computed = _Computed(x, version, mode, parts)
        if keeps:
            turn.computed = computed
        return computed.take(number)

    def _apart(self) -> None:
        """Return None, which makes the layer call its own product; raise or warn if that breaks batch invariance."""
        if self._context.mode.is_on and self.way() is LayerMode.TOGETHER:
            line = "only their common product has one order of sums, and it serves no copies of a patched model, no "
            line += "calls with gradients (use torch.no_grad) or transforms, and no weights that were moved"
            self._context.leave(self._named, line)

    def _computed(self, x: Any) -> list[Any] | None:
        """Return the parts of all layers; None if each layer must be called by itself."""
        whole = self.whole(x)
        # Not views, which share one version counter: parts have no element in common.
        return None if whole is None else list(torch.unsafe_split_with_sizes(whole, self.merged.rows, -1))

    def whole(self, x: Any) -> Any:
        """Return the product of x [..., K] with all layers, [..., sum of N]; None if each must be called by itself."""
        merged = self.merged
        # An earlier call was like this one, so all of the checks below hold.
        if self._is_shared and merged.holds() and not _any_autocast():
            weight, bias = merged.weight, merged.bias
            call = self._gemm.known(x, weight, bias)
            if call is not None:
                return call(x, weight) if bias is None else call(x, weight, bias)
        way = self.way()
        if way is LayerMode.APART or torch.is_grad_enabled() or not is_plain_call((x,)):
            return None
        place = self._context.mode.name, x.shape, x.stride()
        served = True if way is LayerMode.TOGETHER else self._served.get(place)
        if served is False:
            return None
        if torch.is_autocast_enabled(x.device.type) or torch._C._get_tracing_state() is not None:
            return None
        # Once layers have been given different tensors, sharing only wastes work, unless batch invariance requires it.
        if not (self._is_shared or way is LayerMode.TOGETHER) or not self.merged.holds():
            return None
        weight, bias = self.merged.weight, self.merged.bias
        is_invariant = self._context.mode.is_on
        if is_invariant:
            x = as_rows(x)
        if served is None:
            rows = x.numel() // weight.shape[1]
            fits = x.dim() > 0 and x.shape[-1] == weight.shape[-1] and x.dtype == weight.dtype
            served = fits and 0 < rows <= _MOST_ROWS and x.device == weight.device
            served = served and ((self._context.is_watched and not is_invariant) or self._has_row(x))
            if len(self._served) > _MOST_ROWS:
                self._served.clear()
            self._served[place] = served
        return self._gemm(x, weight, bias) if served else None

    def _has_row(self, x: Any) -> bool:
        return self._gemm.is_tuned(x, self.merged.weight, {}, self.merged.bias)

    def _traced_part(self, number: int, x: Any) -> Any:
        """Do the same as part() while torch.compile traces.

        The traced program shows which layers get the same x, and the trial has shown that x does not change between
        them. The operator checks at run time whether the weights are adjacent, and the mode.
        """
        traced = self._traced
        # Not torch.compiler.is_exporting(), which is True in everything that Dynamo of PyTorch 2.11 traces.
        if self._operator is None or torch.is_grad_enabled() or torch.compiler._is_exporting_flag:
            return None
        # If a program is traced in pieces, the module's forward may start outside of the piece.
        if not traced.is_open and self.way() is not LayerMode.TOGETHER:
            return None
        parts = traced.parts
        if parts is None or traced.x is not x or parts[number] is None:
            weights = [layer.weight for layer in self.layers]
            biases = [layer.bias for layer in self.layers if layer.bias is not None]
            usual = all(type(each) in PLAIN and each.dtype == x.dtype for each in weights)
            if not usual or torch.is_autocast_enabled(x.device.type) or any(map(has_hooks, self.layers)):
                return None
            parts = list(self._operator(x, weights, biases).split(self.merged.rows, -1))
            if traced.is_open:
                traced.x, traced.parts = x, parts
        part, parts[number] = parts[number], None
        return part

    def opened(self) -> None:
        """Note that the module's forward starts."""
        if is_traced():
            self._traced.is_open, self._traced.x, self._traced.parts = True, None, None
        else:
            self._turn.is_open, self._turn.computed = True, None

    def closed(self, *, ended: bool) -> None:
        """Note that the module's forward is over; `ended` is False if it raised.

        If a part was not taken, it was computed in vain, and the layers are no longer computed as one product.
        """
        if is_traced():
            self._traced.is_open, self._traced.x, self._traced.parts = False, None, None
            return
        turn = self._turn
        computed = turn.computed
        if ended and computed is not None and computed.left:
            self._is_shared = False
            self._context.say(
                ("apart", id(self)), "layers that shared an input get different tensors: they are called one by one"
            )
        turn.is_open, turn.computed = False, None


class ForwardMarker:
    """A module whose forward marks the start and end of a run for its shared layers, until `undo`.

    If it is `gated` and the gate's kernel serves x, the kernel is called in place of that forward.
    """

    def __init__(self, parent: torch.nn.Module, shared: Sequence[SharedProduct], gated: Gated | None = None) -> None:
        self.parent = parent
        function = type(parent).forward

        def by_kernel(module: Any, x: Any) -> Any:
            """Return the module's result by the kernel; None if the module's own forward must compute it."""
            if gated is None or is_traced() or (gate := gated.call_for(module, x)) is None:
                return None
            (of_both,) = shared
            whole = of_both.whole(x)
            return None if whole is None else getattr(module, gated.down)(gate(whole, whole))

        # pickle looks the function up in the module by its name, which must be "forward".
        @functools.wraps(function)
        def forward(module: Any, *given: Any, **named: Any) -> Any:
            if module is not parent:
                return function(module, *given, **named)
            if len(given) == 1 and not named and (out := by_kernel(module, *given)) is not None:
                return out
            ended = False
            for each in shared:
                each.opened()
            try:
                out = function(module, *given, **named)
                ended = True
                return out
            finally:
                for each in shared:
                    each.closed(ended=ended)

        forward.__name__ = "forward"
        self.undo = give_forward(parent, forward)
