"""Grouped: a format of grouped products as a function of tensors."""

from __future__ import annotations

from typing import Any

import torch

from genkern.errors import InputError
from genkern.gemm.dtypes import BY_TORCH, DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.accumulate import as_called
from genkern.ops.fields import fields_of, parse_own, words_in_calls
from genkern.ops.op import groups_of, operands_of
from genkern.runtime.calls.dispatch import Calls, is_traced
from genkern.runtime.calls.implementation import CallImplementation, Function
from genkern.runtime.routed.product import by_library, is_row_major_b, name_of, product_of, require_one_device


class Grouped(Calls):
    """The function of a format that multiplies rows by the weights of their groups, with `context`'s winners."""

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
        """Compute activation(x @ weight[group].T) for rows in groups, each group with a weight of its own.

        A winner that GENKERN_CONFIG names serves the call, otherwise PyTorch's own functions. A winner reads `rows` on
        the device alone: its values may change from call to call, in a CUDA graph too.

        Args:
            x (Tensor): contiguous layout: shape [M, K], the rows of each group after those of the group before. Masked
                layout: [groups, capacity, K].
            weight (Tensor): shape [groups, N, K].
            rows (Tensor): shape [groups], int32. Contiguous: where the rows of each group end (`offs` of
                torch._grouped_mm); groups may be empty. Masked: how many rows of each group count.
            scale_a (Tensor, optional): of an 8-bit x: [1], [rows, 1] or [rows, K / 128].
            scale_b (Tensor, optional): of an 8-bit weight: [groups, 1, 1], [groups, 1, N] or
                [groups, N / 128, K / 128].
            out_dtype (torch.dtype, optional): type of the result. Default: the type of x, bfloat16 if x has 8 bits.
            activation (str, optional): "relu", "gelu" or "silu". Default: none.
            expected_m (int, optional): masked layout: about how many rows of each group count; a winner is chosen
                for this number. Default: capacity.
            **own: fields of the format by name.

        Returns:
            Tensor: shape [M, N], or [groups, capacity, N], in which rows that do not count have arbitrary values.
            Products without scales are differentiable once.

        Raises:
            InputError: a ValueError, in one line, if shapes, types or devices do not belong together.
            NotImplementedError: in the backward pass, if the product has scales, and in a second derivative.
        """
        given = x, weight, rows, scale_a, scale_b, out_dtype, activation, expected_m, own
        if is_traced():
            return self.direct(*given) if self.operator is None else self.operator(*given[:-1], **own)
        return self._called(given)

    def _serve(self, given: tuple[Any, ...], tensors: tuple[Any, ...]) -> CallImplementation:
        return self._made(given, tuned=True)

    def _library(self, given: tuple[Any, ...]) -> Function:
        return self._made(given, tuned=False).call

    def _made(self, given: tuple[Any, ...], *, tuned: bool) -> CallImplementation:
        x, weight, rows, scale_a, scale_b, out_dtype, *_ = given
        problem = self._problem(*given)
        shape = (*x.shape[:-1], int(weight.shape[1]))
        if problem is None:
            out = x.dtype if out_dtype is None and x.dtype.itemsize > 1 else out_dtype or torch.bfloat16
            return CallImplementation(lambda x, *others: torch.zeros(shape, dtype=out, device=x.device))
        extra = operands_of(problem)[3:]
        names = {operand.name for operand in extra}
        if not names >= {name for name, each in (("scale_a", scale_a), ("scale_b", scale_b)) if each is not None}:
            raise InputError("16-bit operands have no scales: leave them out")
        # The tensors in the order in which calls pass them.
        others = [
            rows if operand.role == "index" else scale_a if operand.name == "scale_a" else scale_b for operand in extra
        ]
        a = _matrix(x)
        tensors = {"a": a, "b": weight, **dict(zip((operand.name for operand in extra), others, strict=True))}
        product = product_of(self._context, problem, tensors) if tuned else None
        call, by_winner = (by_library(problem), False) if product is None else (product.call, product.tuned)
        differentiable = not by_winner and scale_a is None and scale_b is None
        if a is x:
            return CallImplementation(call, differentiable)
        return CallImplementation(lambda x, *more: call(_matrix(x), *more).view(shape), differentiable)

    def _problem(
        self,
        x: Any,
        weight: Any,
        rows: Any,
        scale_a: Any,
        scale_b: Any,
        out_dtype: Any,
        activation: str | None,
        expected_m: int | None,
        own: dict[str, int | str],
    ) -> GemmProblem | None:
        """Return the call's problem; None if there is nothing to multiply. Raises InputError."""
        if weight.dim() != 3 or x.dim() not in (2, 3) or x.shape[-1] != weight.shape[-1]:
            raise InputError(f"x {list(x.shape)} and weight {list(weight.shape)}: give [..., K] and [groups, N, K]")
        require_one_device([each for each in (x, weight, rows, scale_a, scale_b) if each is not None])
        if unknown := set(own) - {field.name for field in fields_of(self.op.fields)}:
            raise InputError(f"{self.op.name} has no {', '.join(sorted(unknown))}")
        count, n, k = map(int, weight.shape)
        masked = x.dim() == 3
        if masked and x.shape[0] != count:
            raise InputError(f"x {list(x.shape)} has other groups than weight {list(weight.shape)}")
        values: dict[str, int | str] = {**own, "groups": count}
        m = int(x.shape[0])
        if masked:
            values["capacity"] = int(x.shape[1])
            m = count * (int(x.shape[1]) if expected_m is None else min(expected_m, int(x.shape[1])))
        a, b = name_of(x, "x"), name_of(weight, "weight")
        narrow = DTYPES[a].size_bytes == 1
        c = BY_TORCH.get(str(out_dtype), "") if out_dtype is not None else "bf16" if narrow else a
        if not c:
            raise InputError(f"out_dtype is {out_dtype}: use one of {', '.join(sorted(BY_TORCH))}")
        if not x.numel() or not weight.numel():
            return None
        if narrow and "scales" not in values:
            values["scales"] = scales_named(scale_a, k)
        values = words_in_calls(self.op.fields) | values
        problem = GemmProblem(
            *(max(m, 1), n, k, self.op.name, a, b, c),
            row_major_b=is_row_major_b(weight),
            activation=activation or "none",
            own=parse_own(self.op.fields, values),
        )
        assert groups_of(problem) is not None
        return as_called(problem, operands_of(problem))


def scales_named(scale_a: Any, k: int) -> str:
    """Return the kind of A's scales from their shape: "per_tensor", "per_token" or "blocks"."""
    if scale_a is None or scale_a.numel() == 1:
        return "per_tensor"
    return "blocks" if scale_a.dim() == 2 and scale_a.shape[1] == -(-k // 128) and k > 128 else "per_token"


def _matrix(x: Any) -> Any:
    """Return x [..., K] as A [rows, K], copied if its rows are not contiguous."""
    x = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return x if x.stride(-1) == 1 else x.contiguous()
