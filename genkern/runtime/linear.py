"""Linear layers of a model by tuned kernels: `patch` replaces them where there is a winner, `report` says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    have a winner, and every other where calls are recorded or logged. Layers with hooks or another forward of their
    own keep theirs, and weights that are subclasses of tensors (quantized, sharded) are the library's.
    """
    patched: dict[str, torch.nn.Linear] = {}
    forward = _forward(gemm)
    for name, layer in _linears(model):
        tuned = any(_winners(layer, context, row_major) for row_major in (True, False))
        if not has_own_forward(layer) and (tuned or _is_watched(layer, context)):
            patched[name] = layer
            # A method, so that a copy of the layer has one of its own, with its own weight.
            layer.forward = MethodType(forward, layer)
    by_weight = {id(layer.weight): layer for layer in patched.values()}
    library = torch.nn.functional.linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if torch.compiler.is_compiling() or (layer := by_weight.get(id(weight))) is None:
            return library(input, weight, bias)
        # Of a weight that was replaced, another tensor may have the number.
        if layer.weight is not weight or _is_librarys(input, weight):
            return library(input, weight, bias)
        return gemm(input, weight, bias)

    if patched:
        torch.nn.functional.linear = linear

    def undo() -> None:
        for layer in patched.values():
            # Somebody may have put another forward around this one since.
            if getattr(vars(layer).get("forward"), "__func__", None) is forward:
                del layer.forward
        # Another patch may be on top of this one, whose library is this function: without weights it passes all on,
        # until that one is undone too.
        by_weight.clear()
        if patched:
            _undone[linear] = library
        while (beneath := _undone.pop(torch.nn.functional.linear, None)) is not None:
            torch.nn.functional.linear = beneath

    return Patch(undo, tuple(patched))


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """What each linear layer of the model would call, in the model's order."""
    return [
        LayerReport(
            name,
            layer.out_features,
            layer.in_features,
            str(layer.weight.dtype).removeprefix("torch."),
            layer.bias is not None,
            *(tuple(_winners(layer, context, row_major)) for row_major in (True, False)),
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
    dtype = BY_TORCH.get(str(layer.weight.dtype))
    gpu = context.gpu(layer.weight.get_device())
    if dtype is None or gpu is None or layer.weight.dim() != 2:
        return []
    size, types = (1, layer.out_features, layer.in_features), (DEFAULT_OP, dtype, dtype, dtype)
    of_weight = not row_majors(layer.weight)[0]
    return context.tuned(gpu, GemmProblem(*size, *types, row_major, of_weight, layer.bias is not None))


def _is_watched(layer: torch.nn.Linear, context: Context) -> bool:
    return context.is_watched and str(layer.weight.dtype) in BY_TORCH


def has_own_forward(layer: torch.nn.Module) -> bool:
    """Whether somebody gave this layer another forward than that of its class."""
    # Of a patched layer, pickle makes one that has the class's as its own.
    forward = vars(layer).get("forward")
    return forward is not None and getattr(forward, "__func__", None) is not type(layer).forward


def _forward(gemm: Gemm) -> Callable[..., Any]:
    # Its name is what pickle looks up in the layer.
    def forward(layer: torch.nn.Linear, input: Any) -> Any:
        if _is_librarys(input, layer.weight):
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return gemm(input, layer.weight, layer.bias)

    return forward


def _is_librarys(input: Any, weight: Any) -> bool:
    """Whether PyTorch would cast what it is given (autocast), or the weight knows better how it is multiplied."""
    if type(weight) not in PLAIN and is_traceable_wrapper_subclass(weight):
        return True
    return bool(torch.is_autocast_enabled(input.device.type))
