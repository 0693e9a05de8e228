"""Repeat the tokens of a check of grouped rows, so that the reference of one period serves all rows of C.

Token t of the problem has the values and the groups of token t mod `period`. A group of the problem then holds the
group of the period's problem, repeated: its rows are ordered by token, so all rows of the first period come before
those of the second one. Groups have different numbers of rows, so a kernel that reads another tile's rows still
computes a wrong result (see bands.period_of).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.groups import Groups
from genkern.ops.op import Op, groups_of
from genkern.profiling.checking.bands import period_length

# Rows that are copied at a time.
_AT_ONCE = 2**16


@dataclass(frozen=True)
class RepeatedGroups:
    """The rows of a problem whose tokens repeat.

    problem: the problem.
    op: its number format.
    groups: its groups, without a capacity.
    period: number of tokens after which tokens repeat.
    device: PyTorch's device of the operands.
    """

    problem: GemmProblem
    op: Op
    groups: Groups
    period: int
    device: Any

    @classmethod
    def of(cls, problem: GemmProblem, op: Op, device: Any) -> RepeatedGroups | None:
        """Return the rows of a problem with many tokens; None if its check needs the reference of every row."""
        groups = groups_of(problem)
        if groups is None or groups.capacity or not op.by_rows:
            return None
        if op.operands(problem)[0].together > 1 or op.shared_scale(problem)[0] > 1:
            return None
        period = period_length(problem.M)
        return cls(problem, op, groups, period, device) if 4 * period <= problem.M else None

    @property
    def short(self) -> GemmProblem:
        """The problem of one period."""
        return replace(self.problem, M=self.period)

    def write(self, tensors: dict[str, Any]) -> None:
        """Write the index operands, and repeat the rows of the first period in A, in its scales and in weights of rows.

        Before the call, the first rows of A hold the rows of one period, in that problem's order.
        """
        rows, slots, ends = self._order[:3]
        for operand in self.op.operands(self.problem):
            tensor = tensors.get(operand.name)
            if tensor is None or operand.role == "output":
                continue
            if operand.name == self.groups.index:
                tensor.copy_(ends)
            elif operand.name == "slots":
                tensor.copy_(slots)
            elif self._is_of_slots(operand):
                _take(tensor, self._of_slots)
            elif self._is_of_a(operand):
                _take(tensor, self._of_tokens if self.groups.gathered else rows)

    def one_period(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the operands of `short` from those of the problem; C is a new tensor without values."""
        first, short, found = self._order[3], self.short, {}
        for operand, of_short in zip(self.op.operands(self.problem), self.op.operands(short), strict=True):
            tensor = tensors[operand.name]
            if operand.role == "output":
                found[operand.name] = tensor.new_empty(of_short.shape)
            elif operand.role == "index":
                found[operand.name] = self.groups.values(self.period, of_short).to(self.device)
            elif self._is_of_slots(operand):
                found[operand.name] = tensor[: of_short.elements]
            elif self._is_of_a(operand):
                found[operand.name] = tensor[: self.period] if self.groups.gathered else _rows(tensor, first)
            else:
                found[operand.name] = tensor
        return found

    @cached_property
    def of_c(self) -> Any:
        """For each row of C the row of C of one period that has the same values, int64."""
        return self._of_tokens if self.groups.summed else self._order[0]

    @cached_property
    def _of_tokens(self) -> Any:
        import torch

        return torch.arange(self.problem.M, device=self.device) % self.period

    @cached_property
    def _of_slots(self) -> Any:
        import torch

        top_k = self.groups.top_k
        return torch.arange(self.problem.M * top_k, device=self.device) % (self.period * top_k)

    @cached_property
    def _order(self) -> tuple[Any, Any, Any, Any]:
        """Return, for rows in the order of groups, with int64 elements:

        - for each row of the problem, the row of the period's problem that it repeats;
        - the slot of each row;
        - the end of each group;
        - for each row of the period's problem, the first row of the problem that repeats it.
        """
        import torch

        groups, of_period = self.groups, self.period * self.groups.top_k
        index = (
            Operand(groups.index, "index", (groups.count,), "int32"),
            Operand("slots", "index", (of_period,), "int32"),
        )
        ends, slots = (groups.values(self.period, each).to(self.device).long() for each in index)
        base = torch.arange(of_period, device=self.device)
        group = torch.searchsorted(ends, base, right=True)
        whole, rest = divmod(self.problem.M, self.period)
        # The last period is partial: only its first `rest` tokens exist.
        copies = whole + (slots // groups.top_k < rest).long()
        repeat = torch.arange(whole + (rest > 0), device=self.device)
        row, of_repeat = base.repeat(len(repeat)), repeat.repeat_interleave(of_period)
        exists = of_repeat < copies[row]
        row, of_repeat = row[exists], of_repeat[exists]
        order = group[row].argsort(stable=True)
        row, of_repeat = row[order], of_repeat[order]
        first = torch.empty_like(base)
        is_first = of_repeat == 0
        first[row[is_first]] = is_first.nonzero().flatten()
        counts = torch.bincount(group[row], minlength=groups.count)
        return row, slots[row] + of_repeat * of_period, counts.cumsum(0), first

    def _is_of_slots(self, operand: Operand) -> bool:
        """True if the operand has one number for each slot, in the order of slots."""
        is_plain = operand.role == "scale" and operand.scales == ""
        return is_plain and operand.shape == (self.problem.M * self.groups.top_k,)

    def _is_of_a(self, operand: Operand) -> bool:
        """True for A, and for scales of A that belong to its rows."""
        a = self.op.operands(self.problem)[0]
        if operand.role == "activation":
            return True
        return operand.scales == "a" and len(operand.shape) > 1 and operand.shape[0] == a.shape[0] > 1


def _take(tensor: Any, index: Any) -> None:
    """Replace each row i of a tensor by its row index[i]."""
    count = int(index.max().item()) + 1
    source = tensor[:count].clone()
    for first in range(0, len(index), _AT_ONCE):
        tensor[first : first + _AT_ONCE].copy_(_rows(source, index[first : first + _AT_ONCE]))


def _rows(tensor: Any, index: Any) -> Any:
    """Return rows of a tensor. PyTorch cannot index every 8-bit type, so such types are seen as integers."""
    import torch

    if tensor.dtype.itemsize > 1:
        return tensor[index]
    return tensor.view(torch.uint8)[index].view(tensor.dtype)
