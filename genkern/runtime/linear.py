"""Linear layers of a model by tuned kernels: `patch` replaces them where there is a winner, `report` says which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import DEFAULT_OP, GemmProblem
from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm

_NAMES = {f"torch.{dtype.torch}": name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class LayerReport:
    """What one layer would call: for which M its sizes were tuned, and who won for each ("vendor": the library)."""

    name: str
    n: int
    k: int
    dtype: str
    bias: bool
    winners: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        tuned = ", ".join(f"M = {m}: {config}" for m, config in self.winners) or "the library (not tuned)"
        return f"{self.name} [{self.n}, {self.k}] {self.dtype}{' with bias' * self.bias}: {tuned}"


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
    have a winner, and every other where calls are captured or logged. Layers with hooks or another forward of their
    own keep theirs.
    """
    patched: list[torch.nn.Linear] = []
    names = []
    weights: set[int] = set()
    for name, layer in _linears(model):
        if "forward" in vars(layer) or not (_winners(layer, context) or _is_watched(layer, context)):
            continue
        patched.append(layer)
        names.append(name)
        weights.add(id(layer.weight))
        layer.forward = _forward(layer, gemm)
    library = torch.nn.functional.linear

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:
        if id(weight) in weights and not torch.compiler.is_compiling() and not _casts(input):
            return gemm(input, weight, bias)
        return library(input, weight, bias)

    if patched:
        torch.nn.functional.linear = linear

    def undo() -> None:
        for layer in patched:
            del layer.forward
        # Another patch may be on top of this one: that one's library is this function, which then has no weights.
        weights.clear()
        if torch.nn.functional.linear is linear:
            torch.nn.functional.linear = library

    return Patch(undo, tuple(names))


def report_model(model: torch.nn.Module, context: Context) -> list[LayerReport]:
    """What each linear layer of the model would call, in the model's order."""
    return [
        LayerReport(
            name,
            layer.out_features,
            layer.in_features,
            str(layer.weight.dtype).removeprefix("torch."),
            layer.bias is not None,
            tuple(_winners(layer, context)),
        )
        for name, layer in _linears(model)
    ]


def _linears(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear]]:
    for name, layer in model.named_modules():
        # A subclass does something else.
        if type(layer) is torch.nn.Linear:
            yield name, layer


def _winners(layer: torch.nn.Linear, context: Context) -> list[tuple[int, str]]:
    dtype = _NAMES.get(str(layer.weight.dtype))
    gpu = context.gpu(layer.weight.get_device())
    if dtype is None or gpu is None:
        return []
    problem = GemmProblem(
        1, layer.out_features, layer.in_features, DEFAULT_OP, dtype, dtype, dtype, True, False, layer.bias is not None
    )
    return context.tuned(gpu, problem)


def _is_watched(layer: torch.nn.Linear, context: Context) -> bool:
    return context.is_watched and str(layer.weight.dtype) in _NAMES


def _forward(layer: torch.nn.Linear, gemm: Gemm) -> Callable[[Any], Any]:
    def forward(input: Any) -> Any:
        if _casts(input):
            return torch.nn.functional.linear(input, layer.weight, layer.bias)
        return gemm(input, layer.weight, layer.bias)

    return forward


def _casts(input: Any) -> bool:
    """Whether PyTorch would cast what it is given (autocast)."""
    return bool(torch.is_autocast_enabled(input.device.type))
