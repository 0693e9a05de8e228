"""The layers of a loaded model that winners serve, their share of its weights, and why other layers are not served.

GENKERN_SKIP_LAYERS leaves layers to the engine: comma-separated patterns of module names or sizes (NxK, experts ExNxK).
GENKERN_ENGINE_REPORT names a file, which must not exist yet, to which mark() writes the layers as JSON.
"""

from __future__ import annotations

import fnmatch
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from genkern.engines.hooks import reason_text, version_of
from genkern.engines.products import Product
from genkern.gemm.problem import GemmProblem

_LOG = logging.getLogger("genkern.engines")
SKIP, REPORT = "GENKERN_SKIP_LAYERS", "GENKERN_ENGINE_REPORT"
# Attribute of a layer, or of the engine's kernel object in it: the operator that serves it (True for experts); False if
# the engine's own code serves it.
MARK = "_genkern_product"
# Largest number of M that a log line names.
_MOST_NAMED = 12
NO_WINNER = "no winner for its size, layout and types"


@dataclass(frozen=True)
class Layer:
    """One layer of a model that multiplies by weights.

    target: the module, or the engine's kernel object in it. It gets `product` as its MARK if the layer is served
    bytes: size of the weights
    served: the M for which there are winners; if empty, the engine's own code serves the layer
    product: the operator that serves the layer
    size: the weight's dimensions, NxK or ExNxK
    why: why the layer is not served
    problems: what the layer computes, with M = 1
    prepare: called before the layer is served
    """

    target: Any
    bytes: int
    served: tuple[int, ...] = ()
    product: Any = True
    size: str = ""
    why: str = ""
    problems: tuple[GemmProblem, ...] = ()
    prepare: Callable[[], None] | None = None

    @classmethod
    def of(cls, module: Any, product: Product | None, why: str = NO_WINNER) -> Layer:
        """Returns a linear layer's Layer. `why` is the reason if the product is None or has no winner."""
        served = () if product is None else product.tuned()
        found = cls(module, weight_bytes(module), served, size=size_of(module.weight), why="" if served else why)
        return found if product is None else replace(found, size=product.size, problems=product.problems())


def weight_bytes(module: Any) -> int:
    """Returns the bytes of a module's own weights, without vectors such as biases."""
    weights = (each for each in module.parameters(recurse=False) if each.dim() > 1)
    return sum(int(each.numel() * each.element_size()) for each in weights)


def size_of(weight: Any) -> str:
    """Returns a weight's dimensions, NxK or ExNxK."""
    return "x".join(map(str, weight.shape))


@dataclass(frozen=True)
class Share:
    """The share of a model's layers, and of the bytes of their weights, that winners serve.

    At small M the time of a product is about the time to read its weight, so the share of bytes is about the share of
    time.
    """

    layers: int
    of_layers: int
    bytes: int
    of_bytes: int
    tuned: tuple[int, ...]

    @classmethod
    def of(cls, layers: Iterable[Layer]) -> Share:
        """Returns the share of these layers."""
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
    """Switches winners on in the layers that have winners; logs and returns their Share of the model.

    `layer_of` returns the Layer of a module, None if it multiplies by no weight. A module at which `layer_of` raises is
    left to the engine; one warning names the first.
    """
    found: list[tuple[str, Layer]] = []
    for name, layer in _layers(model, layer_of):
        if layer.served and is_skipped(name, layer.size):
            layer = replace(layer, served=(), product=False, why=f"{SKIP} names it")
        try:
            if layer.served and layer.prepare is not None:
                layer.prepare()
            setattr(layer.target, MARK, layer.product if layer.served else False)
        except Exception as reason:
            layer = replace(layer, served=(), why=reason_text(reason))
        found.append((name, layer))
    share = Share.of(layer for _, layer in found)
    _LOG.info("genkern serves %s of this %s model; the engine's own code serves the others", share, engine)
    if path := os.environ.get(REPORT, "").strip():
        _report(path, engine, found)
    return share


def _layers(model: Any, layer_of: Callable[[Any], Layer | None]) -> Iterator[tuple[str, Layer]]:
    said = False
    for name, module in model.named_modules():
        try:
            layer = layer_of(module)
        except Exception as reason:
            layer = Layer(module, weight_bytes(module), why=reason_text(reason))
            if not said:
                said = True
                _LOG.warning("genkern cannot read the layer %s: %s; the engine's own code serves it", name, layer.why)
        if layer is not None:
            yield name, layer


def is_skipped(name: str, size: str) -> bool:
    """True if GENKERN_SKIP_LAYERS names a module, or the size of its weight."""
    patterns = [each.strip() for each in os.environ.get(SKIP, "").split(",") if each.strip()]
    return any(fnmatch.fnmatchcase(name, each) or fnmatch.fnmatchcase(size, each) for each in patterns)


def _report(path: str, engine: str, found: Iterable[tuple[str, Layer]]) -> None:
    """Writes the layers to a new file; an existing file is left as it is, and an error is only logged."""
    layers = [
        {
            "name": name,
            "size": layer.size,
            "bytes": layer.bytes,
            "served": list(layer.served),
            "why": layer.why,
            "problems": [asdict(problem) for problem in layer.problems],
        }
        for name, layer in found
    ]
    try:
        # Ranks load equal parts of a model: the first one to write reports for all.
        with open(path, "x", encoding="utf-8") as file:
            json.dump({"engine": engine, "version": version_of(engine), "layers": layers}, file)
    except FileExistsError:
        pass
    except OSError as error:
        _LOG.warning("%s: %s cannot be written (%s)", REPORT, path, error.strerror)


def is_served(module: Any) -> bool:
    """True if winners are switched on in a module, or in a kernel object of an engine's."""
    return bool(getattr(module, MARK, False))
