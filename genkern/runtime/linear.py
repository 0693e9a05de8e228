"""Linear layers of a model by tuned kernels: `patch` replaces them where there is a winner, `report` says which."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from genkern.errors import InputError
from genkern.gemm.dtypes import BY_TORCH
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm, is_traced
from genkern.runtime.plain import PLAIN, is_pytorchs
from genkern.runtime.shared.merging import Place, merge_layers
from genkern.runtime.shared.own_forward import give_forward, has_own_forward, is_given, when_replicated
from genkern.runtime.shared.shared_product import Operator
from genkern.runtime.shared.tuned_groups import groups_of, has_bias, is_tuned, sums_of, winners_of
from genkern.runtime.shared.ways import Way, way_of


@dataclass(frozen=True)
class LayerReport:
    """What one layer would call: for which M its sizes were tuned, and who won for each (vendor, tie: the library).

    `winners` are of x whose rows are contiguous, `winners_of_columns` of x that lies column by column (x.t()). Where
    calls must be batch invariant, `sums` is the order in which all add up, of an x of any number of contiguous rows; ""
    where none does.
    """

    name: str
    n: int
    k: int
    dtype: str
    bias: bool
    winners: tuple[tuple[int, str], ...]
    winners_of_columns: tuple[tuple[int, str], ...] = ()
    sums: str = ""

    def __str__(self) -> str:
        said = [f"M = {m}: {config}" for m, config in self.winners]
        said += [f"M = {m} of a column-major x: {config}" for m, config in self.winners_of_columns]
        tuned = ", ".join(said) or "the library (not tuned)"
        invariant = f"batch invariant ({self.sums}): " if self.sums else ""
        return f"{self.name} [{self.n}, {self.k}] {self.dtype}{' with bias' * self.bias}: {invariant}{tuned}"


_any_autocast = torch._C._is_any_autocast_enabled
# Functions of patches that were undone while others lay on top of them, each with what it was put around.
_undone: dict[Callable[..., Any], Callable[..., Any]] = {}


class Patch:
    """A model whose linear layers call winners until `undo`, or until a `with` block ends.

    `layers` are the names of those that do; `merged` those of them that are called as one product, a name for each
    group, whose weights take `merged_bytes`: the same as before, in one memory a group. `gated` are of the modules
    whose silu and multiplication are one kernel behind such a product.
    """

    def __init__(
        self,
        undo: Callable[[], None],
        layers: tuple[str, ...],
        merged: tuple[str, ...] = (),
        merged_bytes: int = 0,
        gated: tuple[str, ...] = (),
    ) -> None:
        self._undo: Callable[[], None] | None = undo
        self.layers = layers
        self.merged = merged
        self.merged_bytes = merged_bytes
        self.gated = gated

    def undo(self) -> None:
        """Give the layers back what they had; once."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()


def patch_model(
    model: torch.nn.Module,
    gemm: Gemm,
    context: Context,
    linears: Callable[[], Operator] | None = None,
    *,
    gated: bool = True,
) -> Patch:
    """Let every nn.Linear of the model, and torch.nn.functional.linear with its weights, call `gemm` where its N and K
    have a winner, and every other where calls are recorded or logged, or while they must be batch invariant; layers
    that a module gives the same tensor as one product, where their merged weight has a winner. `linears` is the
    operator of such a product, of compiled programs. Where it is followed by silu(gate) * up, that is one kernel,
    unless not `gated`.

    Layers with hooks or another forward of their own keep theirs, and weights that are subclasses of tensors
    (quantized, sharded) are the library's.
    """
    groups = merge_layers(model, gemm, context, linears, gated=gated)
    patched: dict[str, Any] = {}
    undone: dict[str, Callable[[], None]] = {}
    # Those that are served only while they must be batch invariant, and refused then unless a warning is enough.
    refused: list[str] = []
    by_weight: dict[int, Any] = {}
    library, is_installed = torch.nn.functional.linear, False
    # Without layers that it has patched, nothing here keeps a model alive.
    model_of = weakref.ref(model)

    def patch() -> None:
        nonlocal by_weight, library, is_installed
        live, is_invariant = model_of(), context.mode.is_on
        groups.look()
        for name in () if is_invariant else refused:
            del patched[name]
            undone.pop(name)()
        refused[:] = refused if is_invariant else []
        for name, layer in () if live is None else _linears(live):
            if has_own_forward(layer):
                if is_invariant and not is_given(layer):
                    line = "has a forward of its own, which may not be batch invariant"
                    context.say((id(layer), line), f"{name}: {line}", logging.WARNING)
                continue
            place, is_served = groups.places.get(layer), _is_served(layer, context)
            if place is not None or is_served or is_invariant:
                patched[name] = layer
                undone[name] = give_forward(layer, _forward(gemm, context, place, is_served))
                if place is None and not is_served:
                    refused.append(name)
        # A layer that has none of its own is the library's, wherever its weight is multiplied.
        others = () if live is None else _others(live).values()
        wanted = (each for each in (*patched.values(), *others) if is_invariant or _is_served(each, context))
        by_weight = {id(layer.weight): layer for layer in wanted}
        if by_weight and not is_installed:
            library, is_installed = torch.nn.functional.linear, True
            torch.nn.functional.linear = linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        # Compiled programs call the operator of layers, and of other weights what was traced, unless bits may not vary.
        if torch.compiler.is_compiling() and not context.mode.is_on:
            return library(input, weight, bias)
        if (layer := by_weight.get(id(weight))) is None:
            return library(input, weight, bias)
        # Of a weight that was replaced, another tensor may have the number.
        if layer.weight is not weight or _is_librarys(input, weight, context):
            return library(input, weight, bias)
        return _product(gemm, input, weight, bias)

    def not_replicated(name: str) -> Callable[[torch.nn.Module], None]:
        """Of a weight that another module's forward multiplies a replica has another, which nobody knows."""

        def replicated(replica: torch.nn.Module) -> None:
            if context.mode.is_on:
                context.leave(name, "nn.DataParallel copies the weight that others multiply by the functional form")

        return replicated

    patch()
    forget = context.on_switch(patch)
    unreplicated = [when_replicated(module, not_replicated(name)) for name, module in _others(model).items()]

    def undo() -> None:
        forget()
        groups.undo()
        for each in (*undone.values(), *unreplicated):
            each()
        # Another patch may be on top of this one, whose library is this function: without weights it passes all on,
        # until that one is undone too.
        if is_installed:
            _undone[linear] = library
        by_weight.clear()
        while (beneath := _undone.pop(torch.nn.functional.linear, None)) is not None:
            torch.nn.functional.linear = beneath

    others = [name for name, layer in _others(model).items() if id(layer.weight) in by_weight]
    return Patch(undo, (*patched, *others), groups.names, groups.bytes, groups.gated)


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """What each linear layer of the model would call, in the model's order, and behind them layers that are called as
    one product.
    """
    named = [(name, [layer]) for name, layer in _linears(model)]
    is_invariant = context.mode.is_on
    named += [(name, [each]) for name, each in _others(model).items() if is_invariant or _is_tuned(each, context)]
    for group in groups_of(model, context):
        if way_of([layer.weight for layer in group.layers], has_bias(group.layers[0]), context) is not Way.APART:
            named.append((group.name, list(group.layers)))

    def tuned(layers: list[Any], *, row_major: bool) -> tuple[tuple[int, str], ...]:
        is_librarys = any(_knows_itself(layer.weight) for layer in layers)
        return () if is_librarys else tuple(winners_of(layers, context, row_major))

    return [
        LayerReport(
            name,
            sum(int(layer.weight.shape[0]) for layer in layers),
            int(layers[0].weight.shape[-1]),
            str(layers[0].weight.dtype).removeprefix("torch."),
            has_bias(layers[0]),
            tuned(layers, row_major=True),
            tuned(layers, row_major=False),
            sums_of([layer.weight for layer in layers], has_bias(layers[0]), context),
        )
        for name, layers in named
    ]


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, layer in model.named_modules():
        # A subclass does something else.
        if type(layer) is torch.nn.Linear:
            yield name, layer


def _others(model: torch.nn.Module) -> dict[str, Any]:
    """Modules that are no nn.Linear and have a weight [N, K], which they may multiply by the functional form: routers,
    for example. Embeddings are looked up, but for the calls of who shares their weight.
    """
    found = {}
    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        if weight is not None and weight.dim() == 2 and not isinstance(layer, (torch.nn.Linear, torch.nn.Embedding)):
            found[name] = layer
    return found


def _knows_itself(weight: Any) -> bool:
    """True for a wrapper subclass, which defines how it is multiplied: quantised or sharded."""
    return type(weight) not in PLAIN and is_traceable_wrapper_subclass(weight)


def _is_tuned(layer: Any, context: Context) -> bool:
    return not _knows_itself(layer.weight) and any(is_tuned([layer], context, row_major) for row_major in (True, False))


def _is_served(layer: Any, context: Context) -> bool:
    """Whether its calls are genkern's in every mode."""
    return _is_tuned(layer, context) or (context.is_watched and str(layer.weight.dtype) in BY_TORCH)


def _forward(gemm: Gemm, context: Context, place: Place | None, is_served: bool) -> Callable[..., Any]:
    """A layer's forward: of one that has a `place` in a product with others its part of that; if it `is_served`, or
    must be batch invariant, its own call of `gemm`, else the library's.
    """
    shared, number = (None, 0) if place is None else (place.shared, place.number)

    # Its name is what pickle looks up in the layer.
    def forward(layer: torch.nn.Linear, input: Any) -> Any:
        if shared is not None and (part := shared.part(number, layer, input)) is not None:
            return part
        # Not through nn.Module.__getattr__, which takes as long as all else here.
        own = layer._parameters
        weight, bias = own.get("weight"), own.get("bias")
        if is_served and weight is not None and not is_traced() and not _any_autocast():
            call = gemm.known(input, weight, bias)
            if call is not None:
                return call(input, weight) if bias is None else call(input, weight, bias)
        if not (is_served or context.mode.is_on) or _is_librarys(input, layer.weight, context):
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return _product(gemm, input, layer.weight, layer.bias)

    return forward


def _product(gemm: Gemm, input: Any, weight: Any, bias: Any) -> Any:
    """The product; operands that do not fit raise what torch.nn.functional.linear raises."""
    if is_traced():
        return gemm(input, weight, bias)
    try:
        return gemm(input, weight, bias)
    except InputError:
        if gemm.context.mode.is_on:
            raise
    # Behind the handler, so that PyTorch's error has no other as its context.
    return torch._C._nn.linear(input, weight, bias)


def _is_librarys(input: Any, weight: Any, context: Context) -> bool:
    """True if torch.nn.functional.linear must serve the call: under autocast, which casts operands; for tensors that
    define their own product (quantised, sharded, sparse, nested); for types that no kernel multiplies, or two types.

    Raises InvarianceError if calls must be batch invariant.
    """
    why = ""
    traced = is_traced()
    own = next((each for each in (input, weight) if _knows_itself(each) or not (traced or _is_ordinary(each))), None)
    if own is not None:
        why = f"PyTorch multiplies a {type(own).__name__}"
    elif (traced or _any_autocast()) and torch.is_autocast_enabled(input.device.type):
        why = "autocast casts its operands"
    elif input.dtype != weight.dtype:
        why = f"PyTorch multiplies no {input.dtype} by {weight.dtype}"
    elif context.mode.is_on and str(weight.dtype) not in BY_TORCH:
        why = f"no kernel multiplies {weight.dtype}"
    if why and context.mode.is_on:
        context.leave(f"linear layer {list(weight.shape)}", why)
    return why != ""


def _is_ordinary(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and not is_pytorchs(tensor)
