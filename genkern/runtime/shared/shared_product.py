"""Shared: linear layers that one module gives the same tensor, called as one product."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm, is_plain_call, is_traced
from genkern.runtime.plain import PLAIN
from genkern.runtime.shared.gated import Gated
from genkern.runtime.shared.merged_weight import Merged
from genkern.runtime.shared.own_forward import give_forward
from genkern.runtime.shared.siblings import has_hooks
from genkern.runtime.shared.ways import Way, as_rows, way_of

# Of more rows products take as long apart, and what reads parts of a wide result takes longer.
_MOST_ROWS = 1024
_any_autocast = torch._C._is_any_autocast_enabled
# torch.ops.genkern.linears, of x, weights and biases.
Operator = Callable[[Any, list[Any], list[Any]], Any]


class _Computed:
    """What the first layer computed of `x` for those that come after it, of which `left` have not asked yet.

    A part is handed out once, for the same tensor at the same version.
    """

    __slots__ = "left", "mode", "parts", "version", "x"

    def __init__(self, x: Any, version: int | None, mode: Any, parts: list[Any]) -> None:
        self.x, self.version, self.mode, self.parts = x, version, mode, parts
        self.left = len(parts)

    def take(self, number: int) -> Any:
        """The part with this number; None where it was handed out."""
        part, self.parts[number] = self.parts[number], None
        self.left -= part is not None
        return part


class _Turn(threading.local):
    """One run of the module's forward, in one thread. Nothing outlives it: so neither weights that change between two
    runs, nor a tensor that a graph writes anew, meet what was computed before.
    """

    is_open = False
    computed: _Computed | None = None


class _Traced:
    """The same while torch.compile reads the module: the tensors are those of its graph."""

    is_open = False
    x: Any = None
    parts: list[Any] | None = None


class Shared:
    """The layers, in the order of their calls, whose merged weight `gemm` multiplies in one call where it has a winner
    for such x; in every other case each layer is called by itself.

    So it is, besides, where gradients are wanted, under autocast, modes and transforms of PyTorch, for subclasses of
    tensors, while a program is exported, and from when on a weight was replaced or moved. `operator` is called in
    programs that torch.compile reads, where it is given.

    Where calls must be batch invariant their `way` decides, which is the same for every x.
    """

    def __init__(
        self, layers: Sequence[torch.nn.Linear], gemm: Gemm, context: Context, operator: Operator | None = None
    ) -> None:
        self.layers = tuple(layers)
        self.merged = Merged(layers)
        self._gemm, self._context, self._operator = gemm, context, operator
        # Put together here: Dynamo of PyTorch 2.11 cannot tell the type of a text that it puts together itself.
        self._named = f"linear layers {self.merged.rows} that share an input"
        self._turn, self._traced = _Turn(), _Traced()
        self._is_shared = True
        self._served: dict[object, bool] = {}
        # By the name of a mode.
        self._ways: dict[str, Way] = {}
        context.let_forget(self)

    def forget(self) -> None:
        """What is tuned has changed."""
        self._served, self._ways = {}, {}

    def way(self) -> Way:
        """How the layers are called in the mode of now."""
        mode, ways = self._context.mode, self._ways
        way = ways.get(mode.name)
        if way is None:
            way = way_of([layer.weight for layer in self.layers], self.layers[0].bias is not None, self._context)
            # After a switch meanwhile it may be of either mode.
            if self._context.mode is mode:
                ways[mode.name] = way
            if way is Way.APART:
                line = "layers that share an input are called one by one, in the order of sums that each has"
                self._context.say((id(self), way), line)
        return way

    def part(self, number: int, layer: Any, x: Any) -> Any:
        """What the layer with this number gives for x; None where it is to be called by itself. Raises InvarianceError
        where that would be of another order of sums.
        """
        # A copy of a layer has its function, but a weight of its own.
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
        # Of tensors of inference mode nobody counts versions: that the module leaves x as it is was tried, of hooks
        # that came since it was not.
        keeps = turn.is_open and not (version is None and any(map(has_hooks, self.layers)))
        parts = self._computed(x) if keeps or self.way() is Way.TOGETHER else None
        if parts is None:
            return self._apart()
        computed = _Computed(x, version, mode, parts)
        if keeps:
            turn.computed = computed
        return computed.take(number)

    def _apart(self) -> None:
        """What a layer gets that is to be called by itself, where it may be."""
        if self._context.mode.is_on and self.way() is Way.TOGETHER:
            line = "they have one order of sums as one product alone, which copies of a patched model do not call, nor "
            line += "calls with gradients (torch.no_grad), with transforms or of weights that lie elsewhere by now"
            self._context.leave(self._named, line)

    def _computed(self, x: Any) -> list[Any] | None:
        """The parts of all layers, or None."""
        whole = self.whole(x)
        # Not views, of which PyTorch counts versions together: parts share no element.
        return None if whole is None else list(torch.unsafe_split_with_sizes(whole, self.merged.rows, -1))

    def whole(self, x: Any) -> Any:
        """The product of x [..., K] with all layers, [..., sum of N]; None where each is to be called by itself."""
        merged = self.merged
        # A call like this one was made before, which is to say that all of what follows was found out.
        if self._is_shared and merged.holds() and not _any_autocast():
            weight, bias = merged.weight, merged.bias
            call = self._gemm.known(x, weight, bias)
            if call is not None:
                return call(x, weight) if bias is None else call(x, weight, bias)
        way = self.way()
        if way is Way.APART or torch.is_grad_enabled() or not is_plain_call((x,)):
            return None
        place = self._context.mode.name, x.shape, x.stride()
        served = True if way is Way.TOGETHER else self._served.get(place)
        if served is False:
            return None
        if torch.is_autocast_enabled(x.device.type) or torch._C._get_tracing_state() is not None:
            return None
        # A layer that is not given this x is given its own, and its part of that.
        if not (self._is_shared or way is Way.TOGETHER) or not self.merged.holds():
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
        """As part(): which layers are given the same x is read off the program; that it is unchanged between them was
        tried. Whether the weights lie together the operator finds out, and in which mode it runs.
        """
        traced = self._traced
        # Not torch.compiler.is_exporting(), which is true in whatever Dynamo of PyTorch 2.11 reads.
        if self._operator is None or torch.is_grad_enabled() or torch.compiler._is_exporting_flag:
            return None
        # Where a program is read in pieces, the module's forward may begin outside of them.
        if not traced.is_open and self.way() is not Way.TOGETHER:
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
        """The module's forward begins."""
        if is_traced():
            self._traced.is_open, self._traced.x, self._traced.parts = True, None, None
        else:
            self._turn.is_open, self._turn.computed = True, None

    def closed(self, *, ended: bool) -> None:
        """It is over, and has `ended` well. What no layer asked for was computed in vain: not again."""
        if is_traced():
            self._traced.is_open, self._traced.x, self._traced.parts = False, None, None
            return
        turn = self._turn
        computed = turn.computed
        if ended and computed is not None and computed.left:
            self._is_shared = False
            self._context.say(("apart", id(self)), "layers that were given one tensor are given several: called apart")
        turn.is_open, turn.computed = False, None


class Opened:
    """A module whose forward opens and closes what its layers share, until `undo`. Where it is `gated`, and the kernel
    of that serves x, it is called in the place of that forward.
    """

    def __init__(self, parent: torch.nn.Module, shared: Sequence[Shared], gated: Gated | None = None) -> None:
        self.parent = parent
        function = type(parent).forward

        def by_kernel(module: Any, x: Any) -> Any:
            """What the module gives; None where its own forward says that."""
            if gated is None or is_traced() or (gate := gated.call_for(module, x)) is None:
                return None
            (of_both,) = shared
            whole = of_both.whole(x)
            return None if whole is None else getattr(module, gated.down)(gate(whole, whole))

        # Its name is what pickle looks up in the module.
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
