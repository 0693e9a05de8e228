"""Layers of a model that are given the same tensor become one product each, and what they were again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from genkern.runtime.context import Context
from genkern.runtime.dispatch import Gemm
from genkern.runtime.shared.gated import Gated, gate_of
from genkern.runtime.shared.own_forward import has_own_forward
from genkern.runtime.shared.shared_product import Opened, Operator, Shared
from genkern.runtime.shared.tuned_groups import Group, groups_of, known


@dataclass(frozen=True)
class Place:
    """A layer's place in a product that it shares."""

    shared: Shared
    number: int


@dataclass
class Groups:
    """The groups of a model by `names`, the bytes of their weights, by layer its place in one, and the names of the
    modules that are `gated`.
    """

    names: tuple[str, ...] = ()
    bytes: int = 0
    gated: tuple[str, ...] = ()
    places: dict[torch.nn.Module, Place] = field(default_factory=dict)
    _shared: list[Shared] = field(default_factory=list)
    _opened: list[Opened] = field(default_factory=list)

    def add(self, groups: list[Group], shared: list[Shared], gated: Gated | None) -> None:
        """The groups of one module, which may be `gated`."""
        parent = groups[0].parent
        known[parent] = [(group.names, group.layers) for group in groups]
        self.names += tuple(group.name for group in groups)
        self.bytes += sum(each.merged.bytes for each in shared)
        self._shared += shared
        for each in shared:
            self.places |= {layer: Place(each, number) for number, layer in enumerate(each.layers)}
        self.gated += () if gated is None else (groups[0].prefix.removesuffix("."),)
        self._opened.append(Opened(parent, shared, gated))

    def look(self) -> None:
        """Find out now how each is called in the mode of now: a program that torch.compile reads cannot."""
        for each in self._shared:
            each.way()

    def undo(self) -> None:
        """Modules do what they did. Parameters stay where they lie: a graph that was captured meanwhile reads them."""
        for opened in self._opened:
            known.pop(opened.parent, None)
            opened.undo()


def merge_layers(
    model: torch.nn.Module, gemm: Gemm, context: Context, linears: Callable[[], Operator] | None, *, gated: bool = True
) -> Groups:
    """Put the weights of each group into one tensor, and let the group's module call them as one, with what follows of
    gated layers where it may be `gated`.

    Weights for which there is no memory, the size of one group's, stay where they are.
    """
    by_parent: dict[torch.nn.Module, list[Group]] = {}
    for group in groups_of(model, context):
        # One that is patched already has its layers' product.
        if not has_own_forward(group.parent):
            by_parent.setdefault(group.parent, []).append(group)
    made = Groups()
    operator = linears() if linears is not None and by_parent else None
    device = None
    for groups in by_parent.values():
        shared = []
        try:
            for group in groups:
                shared.append(Shared(group.layers, gemm, context, operator))
        except torch.OutOfMemoryError:
            context.say("merging", f"no memory to merge {groups[len(shared)].name}: its layers are called apart")
        if shared:
            made.add(groups[: len(shared)], shared, _gated(groups, context) if gated else None)
            if any(each.merged.moved for each in shared):
                device = groups[0].layers[0].weight.device
    if made.names:
        more = f"; silu(gate) * up of {len(made.gated)} is one kernel" if made.gated else ""
        size = f"{made.bytes / 2**20:.1f} MiB of weights, each group's in one memory: none besides"
        context.say(
            ("merged", id(model)), f"{len(made.names)} groups of layers are called as one product each: {size}{more}"
        )
    if device is not None and device.type == "cuda":
        # What the weights lay in before fits no other group.
        torch.cuda.empty_cache()
    return made


def _gated(groups: list[Group], context: Context) -> Gated | None:
    """What a module with these groups, all of which are merged, computes with the only one, of two layers."""
    if len(groups) != 1 or len(groups[0].layers) != 2:
        return None
    parent, layers = groups[0].parent, groups[0].layers
    gate = gate_of(parent, layers)
    return None if gate is None else Gated(parent, layers, gate, context)
