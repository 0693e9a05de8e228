"""Linear layers of a model by tuned kernels: `patch` replaces them where there is a winner, `report` says which."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MethodType, TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from genkern.gemm.dtypes import BY_TORCH
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.runtime.context import Context
from genkern.runtime.dispatch import PLAIN, Gemm
from genkern.runtime.given import row_majors

# Of the forward that layers are given.
_MARK = "_is_genkerns"


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


# Functions of patches that were undone while others lay on top of them, each with what it was put around.
_undone: dict[Callable[..., Any], Callable[..., Any]] = {}


class Patch:
    """A model whose linear layers call winners until `undo`, or until a `with` block ends."""

    def __init__(self, undo: Callable[[], None], layers: tuple[str, ...]) -> None:
        self._undo: Callable[[], None] | None = undo
        self.layers = layers

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


def patch_model(model: torch.nn.Module, gemm: Gemm, context: Context) -> Patch:
    """Let every nn.Linear of the model, and torch.nn.functional.linear with its weights, call `gemm` where its N and K
    have a winner, and every other where calls are recorded or logged, or while they must be batch invariant. Layers
    with hooks or another forward of their own keep theirs, and weights that are subclasses of tensors (quantized,
    sharded) are the library's.
    """
    patched: dict[str, torch.nn.Linear] = {}
    by_weight: dict[int, torch.nn.Linear] = {}
    # Layers without a winner, while they must be batch invariant.
    refused: dict[str, torch.nn.Linear] = {}
    forward = _forward(gemm, context)
    library, is_installed = torch.nn.functional.linear, False
    # Without layers that it has patched, nothing here keeps a model alive.
    model_of = weakref.ref(model)

    def patch() -> None:
        nonlocal library, is_installed
        live = model_of()
        if not context.mode.is_on:
            _unpatch(refused.values(), forward)
            for name, layer in refused.items():
                del patched[name], by_weight[id(layer.weight)]
            refused.clear()
        for name, layer in () if live is None else _linears(live):
            if has_own_forward(layer):
                if context.mode.is_on and not hasattr(vars(layer)["forward"], _MARK):
                    line = "has a forward of its own, which may not be batch invariant"
                    context.say((id(layer), _MARK), f"{name}: {line}", logging.WARNING)
                continue
            chosen = _is_watched(layer, context)
            chosen = chosen or any(_winners(layer, context, row_major) for row_major in (True, False))
            if chosen or context.mode.is_on:
                patched[name] = layer
                by_weight[id(layer.weight)] = layer
                if not chosen:
                    refused[name] = layer
                # A method, so that a copy of the layer has one of its own, with its own weight.
                layer.forward = MethodType(forward, layer)
        if patched and not is_installed:
            library, is_installed = torch.nn.functional.linear, True
            torch.nn.functional.linear = linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if torch.compiler.is_compiling() or (layer := by_weight.get(id(weight))) is None:
            return library(input, weight, bias)
        # Of a weight that was replaced, another tensor may have the number.
        if layer.weight is not weight or _is_librarys(input, weight, context):
            return library(input, weight, bias)
        return gemm(input, weight, bias)

    patch()
    forget = context.on_switch(patch)

    def undo() -> None:
        forget()
        _unpatch(patched.values(), forward)
        # Another patch may be on top of this one, whose library is this function: without weights it passes all on,
        # until that one is undone too.
        by_weight.clear()
        if is_installed:
            _undone[linear] = library
        while (beneath := _undone.pop(torch.nn.functional.linear, None)) is not None:
            torch.nn.functional.linear = beneath

    return Patch(undo, tuple(patched))


def _unpatch(layers: Iterable[torch.nn.Linear], forward: Callable[..., Any]) -> None:
    """Give layers back what they had, unless somebody has put another forward around this one since."""
    for layer in layers:
        if getattr(vars(layer).get("forward"), "__func__", None) is forward:
            del layer.forward


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """What each linear layer of the model would call, in the model's order."""
    return [
        LayerReport(
            name,
            layer.out_features,
            layer.in_features,
            str(layer.weight.dtype).removeprefix("torch."),
            layer.bias is not None,
            tuple(_winners(layer, context, True)),
            tuple(_winners(layer, context, False)),
            _sums(layer, context),
        )
        for name, layer in _linears(model)
    ]


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, layer in model.named_modules():
        # A subclass does something else.
        if type(layer) is torch.nn.Linear:
            yield name, layer


def _winners(layer: torch.nn.Linear, context: Context, row_major: bool) -> list[tuple[int, str]]:
    """For which M it is tuned, of x that lies so, and who won for each."""
    gpu, problem = context.gpu(layer.weight.get_device()), _problem(layer, row_major)
    return [] if gpu is None or problem is None else context.tuned(gpu, problem)


def _sums(layer: torch.nn.Linear, context: Context) -> str:
    """In which order calls with any number of rows add up, where they must all have one."""
    gpu, problem = context.gpu(layer.weight.get_device()), _problem(layer, True)
    return "" if gpu is None or problem is None else context.sums(gpu, problem)


def _problem(layer: torch.nn.Linear, row_major: bool) -> GemmProblem | None:
    """Of one row of an x that lies so; None of weights of other types."""
    dtype = BY_TORCH.get(str(layer.weight.dtype))
    if dtype is None or layer.weight.dim() != 2:
        return None
    size, types = (1, layer.out_features, layer.in_features), (DEFAULT_OP, dtype, dtype, dtype)
    return GemmProblem(*size, *types, row_major, not row_majors(layer.weight)[0], layer.bias is not None)


def _is_watched(layer: torch.nn.Linear, context: Context) -> bool:
    return context.is_watched and str(layer.weight.dtype) in BY_TORCH


def has_own_forward(layer: torch.nn.Module) -> bool:
    """Whether somebody gave this layer another forward than that of its class."""
    # Of a patched layer, pickle makes one that has the class's as its own.
    forward = vars(layer).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(layer).forward


def _forward(gemm: Gemm, context: Context) -> Callable[..., Any]:
    # Its name is what pickle looks up in the layer.
    def forward(layer: torch.nn.Linear, input: Any) -> Any:
        if _is_librarys(input, layer.weight, context):
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return gemm(input, layer.weight, layer.bias)

    setattr(forward, _MARK, True)
    return forward


def _is_librarys(input: Any, weight: Any, context: Context) -> bool:
    """Whether PyTorch would cast what it is given (autocast), or the weight knows better how it is multiplied. Raises
    InvarianceError where either may not be.
    """
    why = ""
    if type(weight) not in PLAIN and is_traceable_wrapper_subclass(weight):
        why = f"its weight, a {type(weight).__name__}, knows how it is multiplied"
    elif torch.is_autocast_enabled(input.device.type):
        why = "autocast casts its operands"
    if why and context.mode.is_on:
        context.leave(f"linear layer {list(weight.shape)}", why)
    return why != ""
