"""Layers: which of a loaded model's layers are served, marked once, and what share of its weights that is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from genkern.engines.called import Product

_LOG = logging.getLogger("genkern.engines")
# On a layer: a bundle has winners for its weight. Traced code reads no more than this.
MARK = "_genkern_serves"
# How many M a line of log names.
_MOST_NAMED = 12


@dataclass(frozen=True)
class Layer:
    """A layer whose weights have `bytes`; `served` for which M there are winners, none: the engine serves it.

    `module` is marked where it is served.
    """

    module: Any
    bytes: int
    served: tuple[int, ...]

    @classmethod
    def of(cls, module: Any, product: Product | None, served: tuple[int, ...] = ()) -> Layer:
        """A layer whose product is known, or is none of genkern's; of experts, `served` says it."""
        return cls(module, _bytes(module), served if product is None else product.tuned())


def _bytes(module: Any) -> int:
    """Of its own matrices."""
    weights = (each for each in module.parameters(recurse=False) if each.dim() > 1)
    return sum(int(each.numel() * each.element_size()) for each in weights)


@dataclass(frozen=True)
class Share:
    """What share of a model's layers, and of the bytes of their weights, winners serve: the time of few rows' products
    is that of reading their weights.
    """

    layers: int
    of_layers: int
    bytes: int
    of_bytes: int
    tuned: tuple[int, ...]

    @classmethod
    def of(cls, layers: Iterable[Layer]) -> Share:
        """Of all layers."""
        found = list(layers)
        served = [layer for layer in found if layer.served]
        tuned = sorted({m for layer in served for m in layer.served})
        sums = sum(layer.bytes for layer in served), sum(layer.bytes for layer in found)
        return cls(len(served), len(found), *sums, tuple(tuned))

    def __str__(self) -> str:
        of_bytes = 100 * self.bytes / max(self.of_bytes, 1)
        named = ", ".join(map(str, self.tuned[:_MOST_NAMED])) + ", ..." * (len(self.tuned) > _MOST_NAMED)
        tuned = f" (tuned for M = {named})" if self.tuned else ""
        return f"{self.layers} of {self.of_layers} layers, {of_bytes:.1f} % of their weights' bytes{tuned}"


def mark(engine: str, model: Any, layer_of: Callable[[Any], Layer | None]) -> Share:
    """Mark the model's layers that winners serve, and log what share they are; `layer_of` says what a module is."""
    layers = list(_layers(model, layer_of))
    for layer in layers:
        setattr(layer.module, MARK, bool(layer.served))
    share = Share.of(layers)
    _LOG.info("genkern serves %s of this %s model; the others are served as without it", share, engine)
    return share


def _layers(model: Any, layer_of: Callable[[Any], Layer | None]) -> Iterator[Layer]:
    for module in model.modules():
        layer = layer_of(module)
        if layer is not None:
            yield layer


def is_served(module: Any) -> bool:
    """Whether it was marked as served."""
    return bool(getattr(module, MARK, False))
