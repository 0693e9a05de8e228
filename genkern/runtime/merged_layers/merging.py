"""Merges the layers of a model that get the same tensor into one product per group, and undoes that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.merged_layers.gated import Gated, gate_of
from genkern.runtime.merged_layers.own_forward import has_own_forward
from genkern.runtime.merged_layers.shared_product import ForwardMarker, Operator, SharedProduct
from genkern.runtime.merged_layers.tuned_groups import Group, groups_of, known


@dataclass(frozen=True)
class Place:
    """A layer's place in a shared product: the product, and the layer's index."""

    shared: SharedProduct
    number: int


@dataclass
class Groups:
    """The merged groups of a model.

    names: a name for each group.
    bytes: bytes of their weights.
    gated: names of the modules whose gate is one kernel.
    places: the place of each layer.
    """

    names: tuple[str, ...] = ()
    bytes: int = 0
    gated: tuple[str, ...] = ()
    places: dict[torch.nn.Module, Place] = field(default_factory=dict)
    _shared: list[SharedProduct] = field(default_factory=list)
    _opened: list[ForwardMarker] = field(default_factory=list)

    def add(self, groups: list[Group], shared: list[SharedProduct], gated: Gated | None) -> None:
        """Add the groups of one module, which may be `gated`."""
        parent = groups[0].parent
        known[parent] = [(group.names, group.layers) for group in groups]
        self.names += tuple(group.name for group in groups)
        self.bytes += sum(each.merged.bytes for each in shared)
        self._shared += shared
        for each in shared:
            self.places |= {layer: Place(each, number) for number, layer in enumerate(each.layers)}
        self.gated += () if gated is None else (groups[0].prefix.removesuffix("."),)
        self._opened.append(ForwardMarker(parent, shared, gated))

    def look(self) -> None:
        """Determine now how each group is called in the current mode: torch.compile cannot trace that."""
        for each in self._shared:
            each.way()

    def undo(self) -> None:
        """Restore the modules. Parameters stay in their buffers, which graphs that were captured meanwhile read."""
        for opened in self._opened:
            known.pop(opened.parent, None)
            opened.undo()


def merge_layers(
    model: torch.nn.Module, gemm: Gemm, context: Context, linears: Callable[[], Operator] | None, *, gated: bool = True
) -> Groups:
    """Merge the weights of each group, and let the group's module compute its layers as one product.

    With `gated`, the gate that follows such a product may become one kernel. If memory for one group is exhausted, its
    layers stay as they are.
    """
    by_parent: dict[torch.nn.Module, list[Group]] = {}
    for group in groups_of(model, context):
        # A module that is patched already has its own shared product.
        if not has_own_forward(group.parent):
            by_parent.setdefault(group.parent, []).append(group)
    made = Groups()
    operator = linears() if linears is not None and by_parent else None
    device = None
    for groups in by_parent.values():
        shared = []
        try:
            for group in groups:
                shared.append(SharedProduct(group.layers, gemm, context, operator))
        except torch.OutOfMemoryError:
            context.say("merging", f"no memory to merge {groups[len(shared)].name}: its layers are called one by one")
        if shared:
            made.add(groups[: len(shared)], shared, _gated(groups, context) if gated else None)
            if any(each.merged.moved for each in shared):
                device = groups[0].layers[0].weight.device
    if made.names:
        more = f"; silu(gate) * up of {len(made.gated)} is one kernel" if made.gated else ""
        size = f"{made.bytes / 2**20:.1f} MiB of weights, in one buffer per group without a second copy"
        context.say(
            ("merged", id(model)), f"{len(made.names)} groups of layers are called as one product each: {size}{more}"
        )
    if device is not None and device.type == "cuda":
        # Return the freed buffers of the old weights, which PyTorch would keep reserved, to the device.
        torch.cuda.empty_cache()
    return made


def _gated(groups: list[Group], context: Context) -> Gated | None:
    """Return the module's gate if it has exactly one group, of two layers, and is a gated module; else None."""
    if len(groups) != 1 or len(groups[0].layers) != 2:
        return None
    parent, layers = groups[0].parent, groups[0].layers
    gate = gate_of(parent, layers)
    return None if gate is None else Gated(parent, layers, gate, context)
