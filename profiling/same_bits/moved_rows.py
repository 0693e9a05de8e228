"""Make a second call from a first one, with kept rows at other positions and new rows around them.

Half of the rows of a batch are kept and move to other positions; the others get new numbers. With groups, the rows that
are not kept move to another group, so that the kept rows share their group with other rows than before; if groups have
a capacity, all rows stay in their group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.groups import Groups
from genkern.ops.op import Op, groups_of

Tensors = dict[str, Any]


@dataclass(frozen=True)
class SecondCall:
    """Operands of the second call, and which rows must agree.

    tensors: operands of the second call, C among them
    before: rows of the first call's C
    after: rows of the second call's C that must equal them
    """

    tensors: Tensors
    before: Any
    after: Any


def row_operands(problem: GemmProblem, op: Op) -> tuple[Operand, ...]:
    """Return C and the operands that have one row per row of C.

    Returns () if several rows share a scale or rows belong to groups.
    """
    operands = op.operands(problem)
    rows = operands[2].shape[-2]
    if op.shared_scale(problem)[0] > 1 or groups_of(problem) is not None:
        return ()
    return tuple(operand for operand in operands if _has_rows(operand, rows))


def _has_rows(operand: Operand, rows: int) -> bool:
    if operand.role in ("activation", "output"):
        return True
    return operand.scales == "a" and len(operand.shape) > 1 and operand.shape[-2] == rows


def moved(problem: GemmProblem, op: Op, tensors: Tensors, others: Mapping[str, Any], seed: int) -> SecondCall | None:
    """Return the second call for the operands `tensors` of the first; `others` has new numbers for operands with rows.

    Neither `tensors` nor `others` is changed. Returns None if rows cannot move because several of them share a scale.
    """
    if op.shared_scale(problem)[0] > 1:
        return None
    draw = _Draw(seed)
    if (groups := groups_of(problem)) is not None:
        return _regrouped(groups, op.operands(problem), tensors, others, draw)
    return _reordered(row_operands(problem, op), tensors, others, draw)


class _Draw:
    """Draws permutations and halves on the CPU, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        import torch

        self._torch = torch
        self._generator = torch.Generator().manual_seed(seed)

    def order(self, count: int) -> Any:
        return self._torch.randperm(count, generator=self._generator)

    def kept(self, count: int) -> Any:
        """Return a mask of one half of `count` rows, at least one."""
        found = self._torch.zeros(count, dtype=self._torch.bool)
        found[self.order(count)[: -(-count // 2)]] = True
        return found


def _reordered(operands: Sequence[Operand], tensors: Tensors, others: Mapping[str, Any], draw: _Draw) -> SecondCall:
    c = tensors["c"]
    rows = c.shape[-2]
    source, kept = draw.order(rows), draw.kept(rows)
    found = dict(tensors)
    for operand in operands:
        name = operand.name
        found[name] = tensors[name].clone()
        if operand.role != "output":
            _put(found[name], tensors[name], others[name], source, kept[source])
    after = kept[source].nonzero().flatten()
    return SecondCall(found, source[after].to(c.device), after.to(c.device))


def _put(target: Any, kept: Any, other: Any, source: Any, is_kept: Any) -> None:
    """Set row i of the target to row source[i] of `kept` if is_kept[i], else of `other`, in each product of a batch."""
    source, is_kept = source.to(target.device), is_kept.to(target.device)
    # As integers, since few operations support 8-bit floats. A clone has the strides of its source.
    target, kept, other = as_bits(target), as_bits(kept), as_bits(other)
    dimension = target.dim() - 2
    at = is_kept.nonzero().flatten()
    target.copy_(other.index_select(dimension, source))
    target.index_copy_(dimension, at, kept.index_select(dimension, source[at]))


def as_bits(tensor: Any) -> Any:
    """View the same memory as integers of the same size."""
    import torch

    return tensor.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _regrouped(
    groups: Groups, operands: Sequence[Operand], tensors: Tensors, others: Mapping[str, Any], draw: _Draw
) -> SecondCall:
    """Reorder slots within their groups, and move the slots of tokens that are not kept to the next group.

    Groups with a capacity keep their slots, since another group may have no room.
    """
    import torch

    old = list(_slots(groups, tensors))
    place_of = {slot: place for place, _, slot in old}
    tokens = max((slot // groups.top_k for _, _, slot in old), default=-1) + 1
    kept = draw.kept(max(tokens, 1)).tolist()
    by_group: dict[int, list[int]] = {group: [] for group in range(groups.count)}
    shuffled = [old[index] for index in draw.order(len(old)).tolist()]
    for _, group, slot in shuffled:
        stays = kept[slot // groups.top_k] or groups.capacity
        by_group[group if stays else (group + 1) % groups.count].append(slot)
    found = dict(tensors)
    index = tensors[groups.index]
    counts = torch.tensor([len(slots) for slots in by_group.values()])
    found[groups.index] = (counts if groups.capacity else counts.cumsum(0)).to(index.dtype).to(index.device)
    new = list(_placed(groups, by_group))
    c = tensors["c"]
    found["c"] = c.clone()
    if groups.sorted_slots:
        slots = tensors["slots"]
        found["slots"] = torch.tensor([slot for _, slot in new], dtype=slots.dtype, device=slots.device)
    pairs = [(place_of[slot], place, kept[slot // groups.top_k]) for place, slot in new]
    for operand in operands:
        name = operand.name
        if operand.role not in ("activation", "scale") or not (operand.role == "activation" or operand.scales == "a"):
            continue
        if len(operand.shape) < 2:
            continue
        found[name] = tensors[name].clone()
        if groups.gathered:
            # Tokens keep their positions: `slots` determines which rows of C they produce.
            everywhere = torch.arange(tensors[name].shape[0])
            is_kept = torch.tensor([kept[token] if token < len(kept) else True for token in everywhere.tolist()])
            _put(found[name], tensors[name], others[name], everywhere, is_kept)
        elif pairs:
            source = torch.arange(tensors[name].shape[0])
            is_kept = torch.ones(len(source), dtype=torch.bool)
            for before, after, stays in pairs:
                source[after], is_kept[after] = before, stays
            _put(found[name], tensors[name], others[name], source, is_kept)
    if groups.summed:
        same = torch.tensor([token for token in range(tokens) if kept[token]], device=c.device)
        return SecondCall(found, same, same)
    wanted = [(before, after) for before, after, stays in pairs if stays]
    before, after = (torch.tensor([pair[side] for pair in wanted], dtype=torch.int64) for side in (0, 1))
    return SecondCall(found, before.to(c.device), after.to(c.device))


def _slots(groups: Groups, tensors: Tensors) -> Iterator[tuple[int, int, int]]:
    """Yield position, group and slot of each row. Without slots, each row counts as a token of its own."""
    said = tensors[groups.index].tolist()
    slots = tensors["slots"].tolist() if groups.sorted_slots else None
    first = 0
    for group, count in enumerate(said):
        start, end = (group * groups.capacity, group * groups.capacity + count) if groups.capacity else (first, count)
        for place in range(start, end):
            # Without slots any unique number works, because top_k is 1.
            yield place, group, slots[place] if slots is not None else place
        first = end


def _placed(groups: Groups, by_group: Mapping[int, Sequence[int]]) -> Iterator[tuple[int, int]]:
    place = 0
    for group, slots in by_group.items():
        place = group * groups.capacity if groups.capacity else place
        for slot in slots:
            yield place, slot
            place += 1
