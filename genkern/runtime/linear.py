"""Linear layers by winners: `patch_model` replaces their forward, `report_model` lists what they would call."""

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
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm, is_traced
from genkern.runtime.calls.plain_tensor import PLAIN, multiplies_itself
from genkern.runtime.merged_layers.invariant_mode import LayerMode, layer_mode_of
from genkern.runtime.merged_layers.merging import Place, merge_layers
from genkern.runtime.merged_layers.own_forward import (
    give_forward,
    has_genkern_forward,
    has_own_forward,
    when_replicated,
)
from genkern.runtime.merged_layers.shared_product import Operator
from genkern.runtime.merged_layers.tuned_groups import groups_of, has_bias, is_tuned, sums_of, winners_of


@dataclass(frozen=True)
class LayerReport:
    """What one layer would call.

    name: the layer's name in the model.
    n, k: sizes of its weight [N, K].
    dtype: type of its weight.
    bias: True if it has a bias.
    winners: each M that was tuned, with its winner ("vendor" and "tie" mean the library), for a row-major x.
    winners_of_columns: the same for a column-major x (x.t()).
    sums: the order of sums of all calls, for a row-major x with any number of rows; "" if calls need not be
        batch-invariant or no winner is.
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
# Functions of patches that were undone while another patch lay on top of them, with the function that each replaced.
_undone: dict[Callable[..., Any], Callable[..., Any]] = {}


class Patch:
    """A model whose linear layers call winners until `undo`, or until the `with` block ends.

    layers: names of the patched layers, and of other modules whose weights are multiplied by winners.
    merged: one name per group of layers that are computed as one product.
    merged_bytes: bytes of the weights of these groups. They take no more memory than before, in one buffer per group.
    gated: names of the modules in which such a product is followed by one kernel for silu and multiplication.
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
        """Restore the layers. Further calls do nothing."""
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
    """Replace the forward of the model's linear layers by calls of `gemm`, and torch.nn.functional.linear likewise.

    A layer is replaced if its N and K have a winner, if calls are recorded or logged, or while calls must be
    batch-invariant. torch.nn.functional.linear is replaced for the whole process: it calls `gemm` for weights of the
    model, but not while a program is compiled, unless calls must be batch-invariant. Layers that a module calls with
    the same tensor become one product if their merged weight has a winner; `linears` returns the operator of that
    product for compiled programs. With `gated`, silu(gate) * up after such a product is one kernel.

    Layers with hooks or a forward of their own are left alone. Weights that are wrapper subclasses of tensors
    (quantised, sharded) are left to the library.
    """
    groups = merge_layers(model, gemm, context, linears, gated=gated)
    patched: dict[str, Any] = {}
    undone: dict[str, Callable[[], None]] = {}
    # Layers that are replaced only while calls must be batch-invariant. Their calls raise then, or warn in the mode
    # "warn".
    refused: list[str] = []
    by_weight: dict[int, Any] = {}
    library, is_installed = torch.nn.functional.linear, False
    # A weak reference, so that a patch without layers does not keep the model alive.
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
                if is_invariant and not has_genkern_forward(layer):
                    line = "has a forward of its own, which may not be batch-invariant"
                    context.say((id(layer), line), f"{name}: {line}", logging.WARNING)
                continue
            place, is_served = groups.places.get(layer), _is_served(layer, context)
            if place is not None or is_served or is_invariant:
                patched[name] = layer
                undone[name] = give_forward(layer, _forward(gemm, context, place, is_served))
                if place is None and not is_served:
                    refused.append(name)
        # Other modules keep their forward; the replaced torch.nn.functional.linear multiplies their weights.
        others = () if live is None else _others(live).values()
        wanted = (each for each in (*patched.values(), *others) if is_invariant or _is_served(each, context))
        by_weight = {id(layer.weight): layer for layer in wanted}
        if by_weight and not is_installed:
            library, is_installed = torch.nn.functional.linear, True
            torch.nn.functional.linear = linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        # While a program is compiled, patched layers call genkern's operator themselves. Products with other weights
        # stay PyTorch's, unless calls must be batch-invariant.
        if torch.compiler.is_compiling() and not context.mode.is_on:
            return library(input, weight, bias)
        if (layer := by_weight.get(id(weight))) is None:
            return library(input, weight, bias)
        # If a weight was replaced, another tensor may have its id.
        if layer.weight is not weight or _is_librarys(input, weight, context):
            return library(input, weight, bias)
        return _product(gemm, input, weight, bias)

    def not_replicated(name: str) -> Callable[[torch.nn.Module], None]:
        """Return a function for nn.DataParallel's replicas, which leaves them to PyTorch.

        Replicas have copies of this weight. The forward that multiplies it uses the functional form, so copies cannot
        be matched.
        """

        def replicated(replica: torch.nn.Module) -> None:
            if context.mode.is_on:
                context.leave(name, "nn.DataParallel copies the weight that others multiply functionally")

        return replicated

    patch()
    forget = context.on_switch(patch)
    unreplicated = [when_replicated(module, not_replicated(name)) for name, module in _others(model).items()]

    def undo() -> None:
        forget()
        groups.undo()
        for each in (*undone.values(), *unreplicated):
            each()
        # Another patch may lie on top of this one and call this function as its library. Without weights this function
        # passes all calls on, until the other patch is undone too.
        if is_installed:
            _undone[linear] = library
        by_weight.clear()
        while (beneath := _undone.pop(torch.nn.functional.linear, None)) is not None:
            torch.nn.functional.linear = beneath

    others = [name for name, layer in _others(model).items() if id(layer.weight) in by_weight]
    return Patch(undo, (*patched, *others), groups.names, groups.bytes, groups.gated)


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """Return what each linear layer would call, then what each group of layers that is one product would call."""
    named = [(name, [layer]) for name, layer in _linears(model)]
    is_invariant = context.mode.is_on
    named += [(name, [each]) for name, each in _others(model).items() if is_invariant or _is_tuned(each, context)]
    for group in groups_of(model, context):
        if (
            layer_mode_of([layer.weight for layer in group.layers], has_bias(group.layers[0]), context)
            is not LayerMode.APART
        ):
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
        # A subclass may compute something else.
        if type(layer) is torch.nn.Linear:
            yield name, layer


def _others(model: torch.nn.Module) -> dict[str, Any]:
    """Return modules with a weight [N, K] other than nn.Linear, such as routers.

    They may multiply the weight by the functional form. Embeddings are left out: they look rows up.
    """
    found = {}
    for name, layer in model.named_modules():
        weight = layer._parameters.get("weight")
        if weight is not None and weight.dim() == 2 and not isinstance(layer, (torch.nn.Linear, torch.nn.Embedding)):
            found[name] = layer
    return found


def _knows_itself(weight: Any) -> bool:
    """Return True for a wrapper subclass, which defines how it is multiplied: quantised or sharded."""
    return type(weight) not in PLAIN and is_traceable_wrapper_subclass(weight)


def _is_tuned(layer: Any, context: Context) -> bool:
    return not _knows_itself(layer.weight) and any(is_tuned([layer], context, row_major) for row_major in (True, False))


def _is_served(layer: Any, context: Context) -> bool:
    """Return True if the layer calls `gemm` in every mode: it has a winner, or calls are recorded or logged."""
    return _is_tuned(layer, context) or (context.is_watched and str(layer.weight.dtype) in BY_TORCH)


def _forward(gemm: Gemm, context: Context, place: Place | None, is_served: bool) -> Callable[..., Any]:
    """Return a layer's forward.

    A layer with a `place` returns its part of the shared product, if the layers can be computed as one. Otherwise it
    calls `gemm` if it `is_served` or calls must be batch-invariant, else the library.
    """
    shared, number = (None, 0) if place is None else (place.shared, place.number)

    # pickle looks the function up in the layer by its name, which must be "forward".
    def forward(layer: torch.nn.Linear, input: Any) -> Any:
        if shared is not None and (part := shared.part(number, layer, input)) is not None:
            return part
        # Not through nn.Module.__getattr__, which takes as long as everything else here.
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
    """Return the product. Operands that do not fit raise what torch.nn.functional.linear raises."""
    if is_traced():
        return gemm(input, weight, bias)
    try:
        return gemm(input, weight, bias)
    except InputError:
        if gemm.context.mode.is_on:
            raise
    # Outside of the handler, so that PyTorch's error has no other error as its context.
    return torch._C._nn.linear(input, weight, bias)


def _is_librarys(input: Any, weight: Any, context: Context) -> bool:
    """Return True if torch.nn.functional.linear must serve the call.

    That is the case under autocast, which casts operands; for tensors that define their own product (quantised,
    sharded, sparse, nested); for types that no kernel multiplies; and for operands of two types. If calls must be
    batch-invariant, raises InvarianceError then, or warns in the mode "warn".
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
    return isinstance(tensor, torch.Tensor) and not multiplies_itself(tensor)
