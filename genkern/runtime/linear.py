"""Linear layers of a model by tuned kernels: `patch` replaces them where there is a winner, `report` says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from genkern.gemm.dtypes import BY_TORCH
from genkern.runtime.context import Context
from genkern.runtime.dispatch import PLAIN, Gemm
from genkern.runtime.shared.merging import Place, merge_layers
from genkern.runtime.shared.own_forward import give_forward, has_own_forward
from genkern.runtime.shared.shared_product import Operator
from genkern.runtime.shared.tuned_groups import groups_of, has_bias, winners_of


@dataclass(frozen=True)
class LayerReport:
    """What one layer would call: for which M its sizes were tuned, and who won for each (vendor, tie: the library).

    `winners` are of x whose rows are contiguous, `winners_of_columns` of x that lies column by column (x.t()).
    """

    name: str
    n: int
    k: int
    dtype: str
    bias: bool
    winners: tuple[tuple[int, str], ...]
    winners_of_columns: tuple[tuple[int, str], ...] = ()

    def __str__(self) -> str:
        said = [f"M = {m}: {config}" for m, config in self.winners]
        said += [f"M = {m} of a column-major x: {config}" for m, config in self.winners_of_columns]
        tuned = ", ".join(said) or "the library (not tuned)"
        return f"{self.name} [{self.n}, {self.k}] {self.dtype}{' with bias' * self.bias}: {tuned}"


# Functions of patches that were undone while others lay on top of them, each with what it was put around.
_undone: dict[Callable[..., Any], Callable[..., Any]] = {}


class Patch:
    """A model whose linear layers call winners until `undo`, or until a `with` block ends.

    `layers` are the names of those that do; `merged` those of them that are called as one product, a name for each
    group, whose weights take `merged_bytes`: the same as before, in one memory a group.
    """

    def __init__(
        self, undo: Callable[[], None], layers: tuple[str, ...], merged: tuple[str, ...] = (), merged_bytes: int = 0
    ) -> None:
        self._undo: Callable[[], None] | None = undo
        self.layers = layers
        self.merged = merged
        self.merged_bytes = merged_bytes

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
    model: torch.nn.Module, gemm: Gemm, context: Context, linears: Callable[[], Operator] | None = None
) -> Patch:
    """Let every nn.Linear of the model, and torch.nn.functional.linear with its weights, call `gemm` where its N and K
    have a winner, and every other where calls are recorded or logged; layers that a module gives the same tensor as one
    product, where their merged weight has one. `linears` is the operator of such a product, of compiled programs.

    Layers with hooks or another forward of their own keep theirs, and weights that are subclasses of tensors
    (quantized, sharded) are the library's.
    """
    groups = merge_layers(model, gemm, context, linears)
    patched: dict[str, Any] = {}
    undone: list[Callable[[], None]] = [groups.undo]
    for name, layer in _linears(model):
        place = groups.places.get(layer)
        is_served = _is_tuned(layer, context) or _is_watched(layer, context)
        if not has_own_forward(layer) and (place is not None or is_served):
            patched[name] = layer
            undone.append(give_forward(layer, _forward(gemm, place, is_served)))
    # A layer that has none of its own is the library's, wherever its weight is multiplied.
    by_weight = {
        id(layer.weight): layer
        for layer in (*patched.values(), *_others(model).values())
        if _is_tuned(layer, context) or _is_watched(layer, context)
    }
    library = torch.nn.functional.linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if torch.compiler.is_compiling() or (layer := by_weight.get(id(weight))) is None:
            return library(input, weight, bias)
        # Of a weight that was replaced, another tensor may have the number.
        if layer.weight is not weight or _is_librarys(input, weight):
            return library(input, weight, bias)
        return gemm(input, weight, bias)

    if by_weight:
        torch.nn.functional.linear = linear

    def undo() -> None:
        for each in undone:
            each()
        # Another patch may be on top of this one, whose library is this function: without weights it passes all on,
        # until that one is undone too.
        if by_weight:
            _undone[linear] = library
        by_weight.clear()
        while (beneath := _undone.pop(torch.nn.functional.linear, None)) is not None:
            torch.nn.functional.linear = beneath

    others = [name for name, layer in _others(model).items() if id(layer.weight) in by_weight]
    return Patch(undo, (*patched, *others), groups.names, groups.bytes)


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """What each linear layer of the model would call, in the model's order, and behind them layers that are called as
    one product.
    """
    named = [(name, [layer]) for name, layer in (*_linears(model), *_others(model).items())]
    named = [each for each in named if type(each[1][0]) is torch.nn.Linear or _is_tuned(each[1][0], context)]
    named += [(group.name, list(group.layers)) for group in groups_of(model, context)]
    return [
        LayerReport(
            name,
            sum(int(layer.weight.shape[0]) for layer in layers),
            int(layers[0].weight.shape[-1]),
            str(layers[0].weight.dtype).removeprefix("torch."),
            has_bias(layers[0]),
            *(tuple(winners_of(layers, context, row_major)) for row_major in (True, False)),
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


def _is_tuned(layer: Any, context: Context) -> bool:
    return any(winners_of([layer], context, row_major) for row_major in (True, False))


def _is_watched(layer: Any, context: Context) -> bool:
    return context.is_watched and str(layer.weight.dtype) in BY_TORCH


def _forward(gemm: Gemm, place: Place | None, is_served: bool) -> Callable[..., Any]:
    """A layer's forward: of one that has a `place` in a product with others its part of that, if it `is_served` its own
    call of `gemm`, else the library's.
    """
    shared, number = (None, 0) if place is None else (place.shared, place.number)

    # Its name is what pickle looks up in the layer.
    def forward(layer: torch.nn.Linear, input: Any) -> Any:
        if shared is not None and (part := shared.part(number, layer, input)) is not None:
            return part
        if not is_served or _is_librarys(input, layer.weight):
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return gemm(input, layer.weight, layer.bias)

    return forward


def _is_librarys(input: Any, weight: Any) -> bool:
    """Whether PyTorch would cast what it is given (autocast), or the weight knows better how it is multiplied."""
    if type(weight) not in PLAIN and is_traceable_wrapper_subclass(weight):
        return True
    return bool(torch.is_autocast_enabled(input.device.type))
