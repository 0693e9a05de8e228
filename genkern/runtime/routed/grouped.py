"""Grouped: a format of rows in groups as a function of tensors."""

from __future__ import annotations

from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import parse_own
from genkern.ops.op import get_op, groups_of
from genkern.runtime.context import Context
from genkern.runtime.given import BY_TORCH
from genkern.runtime.routed.named_call import NamedCalls, aligned


class Grouped:
    """x's rows by the weight of the group that each is of, with what `context` has tuned."""

    def __init__(self, op: str, context: Context) -> None:
        """Raises InputError where there is no such format."""
        self.op = get_op(op)
        self._calls = NamedCalls(op, context)
        self.__name__ = f"gemm_{op}"

    def __call__(
        self,
        x: Any,
        weight: Any,
        rows: Any,
        scale_a: Any = None,
        scale_b: Any = None,
        out_dtype: Any = None,
        activation: str | None = None,
        expected_m: int | None = None,
        **own: int | str,
    ) -> Any:
        """activation(x @ weight[group].T) of each row's group.

        Contiguous: x [M, K] has the rows of one group behind those of another, and rows [groups], int32, says where
        each group's end (torch._grouped_mm's offs). Masked: x is [groups, capacity, K], rows [groups] says how many of
        a group's count, and expected_m how many there are of a group, about (capacity where nobody says it): which
        winner is taken goes by it. The result is [M, N], or [groups, capacity, N] whose other rows hold anything.
        weight is [groups, N, K]. Of 8-bit operands scale_a is [1], [rows, 1] or [rows, K / 128], scale_b
        [groups, 1, 1], [groups, 1, N] or [groups, N / 128, K / 128]; out_dtype is that of x, of 8-bit operands
        bfloat16. A winner looks at no value on the host: `rows` may change from call to call, in a graph too. Raises
        InputError.
        """
        import torch

        if weight.dim() != 3 or x.dim() not in (2, 3) or x.shape[-1] != weight.shape[-1]:
            raise InputError(f"x {list(x.shape)} and weight {list(weight.shape)}: give [..., K] and [groups, N, K]")
        count, n, k = map(int, weight.shape)
        masked = x.dim() == 3
        if masked and x.shape[0] != count:
            raise InputError(f"x {list(x.shape)} has other groups than weight {list(weight.shape)}")
        values: dict[str, int | str] = {**own, "groups": count}
        m = int(x.shape[0])
        if masked:
            values["capacity"] = int(x.shape[1])
            m = count * (int(x.shape[1]) if expected_m is None else min(expected_m, int(x.shape[1])))
        shape = (*x.shape[:-1], n)
        a, b = (BY_TORCH.get(str(each.dtype), "") for each in (x, weight))
        if not a or not b:
            raise InputError(f"x is {x.dtype}, weight {weight.dtype}: use one of {', '.join(sorted(BY_TORCH))}")
        narrow = DTYPES[a].size_bytes == 1
        c = BY_TORCH.get(str(out_dtype), "") if out_dtype is not None else "bf16" if narrow else a
        if not c:
            raise InputError(f"out_dtype is {out_dtype}: use one of {', '.join(sorted(BY_TORCH))}")
        if not x.numel() or not weight.numel():
            return torch.zeros(shape, dtype=getattr(torch, DTYPES[c].torch), device=x.device)
        if narrow and "scales" not in values:
            values["scales"] = scales_named(scale_a, k)
        problem = GemmProblem(
            *(max(m, 1), n, k, self.op.name, a, b, c),
            activation=activation or "none",
            own=parse_own(self.op.fields, values),
        )
        groups = groups_of(problem)
        assert groups is not None
        tensors = {"a": _matrix(x), "b": weight.mT if weight.stride(-1) == 1 else weight.contiguous().mT}
        tensors[groups.index] = rows
        tensors |= scales_of(problem, scale_a, scale_b)
        return self._calls(problem, tensors).view(shape)


def scales_named(scale_a: Any, k: int) -> str:
    """What scales of A of such a shape are: one for all of A, for rows, or for blocks."""
    if scale_a is None or scale_a.numel() == 1:
        return "per_tensor"
    return "blocks" if scale_a.dim() == 2 and scale_a.shape[1] == -(-k // 128) and k > 128 else "per_token"


def scales_of(problem: GemmProblem, scale_a: Any, scale_b: Any) -> dict[str, Any]:
    """The scales by the names of operands, as they lie there; none of 16-bit operands. Raises InputError."""
    given = {"scale_a": scale_a, "scale_b": scale_b}
    found = {}
    for operand in get_op(problem.op).operands(problem):
        if operand.name in given:
            tensor = given.pop(operand.name)
            if tensor is None or tensor.numel() != operand.elements:
                said = "missing" if tensor is None else f"{list(tensor.shape)}"
                raise InputError(f"{operand.name} is {said}: give {list(operand.shape)} in float32")
            tensor = tensor.reshape(operand.shape)
            found[operand.name] = aligned(tensor) if operand.row_major else aligned(tensor.mT).mT
    if any(tensor is not None for tensor in given.values()):
        raise InputError("16-bit operands have no scales: leave them out")
    return found


def _matrix(x: Any) -> Any:
    """x [..., K] as A [rows, K]; copied where it does not lie so."""
    x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 and x.data_ptr() % 16 == 0 else aligned(x)
