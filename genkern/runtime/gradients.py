"""Gradients of products without scales, which are products too: by their own winners, where they have rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from genkern.ops.fields import fields_of
from genkern.runtime.dispatch import Gemm


@dataclass(frozen=True)
class Gradients:
    """The backward pass of a format's operator, `setup` and `backward` as torch.library.register_autograd has them."""

    gemm: Gemm

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, _, scale_a, scale_b, activation, *own = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.scaled = scale_a is not None or scale_b is not None
        ctx.activation, ctx.inputs = activation, len(inputs)
        named = zip((field.name for field in fields_of(self.gemm.op.fields)), own, strict=False)
        ctx.own = {name: value for name, value in named if value is not None}

    def backward(self, ctx: Any, grad: Any) -> tuple[Any, ...]:
        """What has no row is computed as torch.nn.functional.linear's backward pass is; what an activation was given
        is computed anew.
        """
        if ctx.scaled:
            raise NotImplementedError(
                "genkern has no gradient of products with scales: call them under torch.no_grad()"
            )
        x, weight, bias = ctx.saved_tensors
        type_x, type_weight = x.dtype, weight.dtype
        if type_x != type_weight:
            x, weight, bias = x.float(), weight.float(), None if bias is None else bias.float()
        if ctx.activation not in (None, "none"):
            # Where this pass is differentiated itself, through what the activation was given too.
            twice = torch.is_grad_enabled()
            before = x @ weight.mT if weight.dim() == 3 else torch.nn.functional.linear(x, weight, bias)
            before = before if twice else before.detach().requires_grad_()
            with torch.enable_grad():
                after = getattr(torch.nn.functional, ctx.activation)(before)
            (grad,) = torch.autograd.grad(after, before, grad.to(after.dtype), create_graph=twice)
        grad = grad.to(x.dtype)
        flat = grad.reshape(-1, grad.shape[-1])
        of_x = self._product(grad, weight.mT, ctx.own).to(type_x) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            rows, columns = (grad, x) if weight.dim() == 3 else (flat, x.reshape(-1, x.shape[-1]))
            of_weight = self._product(rows.mT, columns.mT, ctx.own).to(type_weight)
        of_bias = flat.sum(0).to(bias.dtype) if bias is not None and ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, *[None] * (ctx.inputs - 3)

    def _product(self, x: Any, weight: Any, own: Mapping[str, Any]) -> Any:
        return self.gemm(x, weight, **own) if self.gemm.is_tuned(x, weight, own) else x @ weight.mT
