"""Grouped products and mixtures of experts as PyTorch operators, whose gradients PyTorch's own functions compute.

The backward pass is an operator, too: these functions read values on the host, which torch.compile cannot trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from genkern.ops.fields import fields_of
from genkern.runtime.process.torch_ops import define_calls, define_plain
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped

_EXPERTS = (
    "Tensor x, Tensor gate_up, Tensor down, Tensor routing_weights, Tensor ids, Tensor? gate_up_scale=None, "
    'Tensor? down_scale=None, str activation="silu", str? scales=None, Tensor? x_scale=None, '
    "ScalarType? out_dtype=None{own}"
)
_GROUPED = (
    "Tensor x, Tensor weight, Tensor rows, Tensor? scale_a=None, Tensor? scale_b=None, ScalarType? out_dtype=None, "
    "str? activation=None, SymInt? expected_m=None{own}"
)
# Fields that follow from the shapes of a call's tensors, or that are arguments of their own.
_TOLD = ("stage", "experts", "top_k", "scales"), ("groups", "capacity")


def define(calls: Experts | Grouped, name: str = "") -> Any:
    """Define the operator torch.ops.genkern.gemm_OP (or `name`) and that of its gradients; return the first."""
    name = name or calls.__name__
    is_layer = isinstance(calls, Experts)
    schema, told = (_EXPERTS, _TOLD[0]) if is_layer else (_GROUPED, _TOLD[1])
    fields = [field for field in fields_of(calls.op.fields) if field.name not in told]
    names = [field.name for field in fields]
    gradient = _Gradient(calls, names)
    of_gradient = define_plain(
        f"{name}_backward", f"(Tensor grad, int[] wanted, {schema}) -> Tensor[]", fields, gradient.run, _empty
    )

    def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
        if ctx.scaled:
            raise NotImplementedError(
                "genkern has no gradient of products with scales: call them under torch.no_grad()"
            )
        if torch.is_grad_enabled():
            # A second derivative would have to differentiate the operator of the gradients.
            raise NotImplementedError(
                "genkern has only first derivatives of grouped products: use PyTorch's functions for further ones"
            )
        given = list(ctx.others)
        for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
            given[place] = tensor
        wanted = [place for place in ctx.places if ctx.needs_input_grad[place]]
        found: list[Any] = [None] * len(given)
        for place, each in zip(wanted, of_gradient(grad, wanted, *given), strict=True):
            found[place] = each
        return tuple(found)

    fake = _fake_layer if is_layer else _fake_grouped
    return define_calls(calls, name, f"({schema}) -> Tensor", fields, fake, backward, _setup)


@dataclass(frozen=True)
class _Gradient:
    """The gradients of a call, computed by the library."""

    calls: Experts | Grouped
    names: list[str]

    def run(self, grad: Any, wanted: list[int], *given: Any) -> list[Any]:
        """Return the gradients of the arguments with the indices `wanted`, each with its argument's strides."""
        common = len(given) - len(self.names)
        own = {name: value for name, value in zip(self.names, given[common:], strict=True) if value is not None}
        arguments: list[Any] = list(given[:common])
        with torch.enable_grad():
            for place in wanted:
                arguments[place] = arguments[place].detach().requires_grad_()
            tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
            out = self.calls._library((*arguments, own))(*tensors)
            leaves = [arguments[place] for place in wanted]
            found = (
                torch.autograd.grad(out, leaves, grad, allow_unused=True) if out.requires_grad else [None] * len(wanted)
            )
        return [_like(leaf, each) for leaf, each in zip(leaves, found, strict=True)]


def _like(leaf: Any, gradient: Any) -> Any:
    if gradient is None:
        return torch.zeros_like(leaf)
    return gradient if gradient.stride() == leaf.stride() else torch.empty_like(leaf).copy_(gradient)


def _empty(grad: Any, wanted: list[int], *given: Any) -> list[Any]:
    return [torch.empty_like(given[place]) for place in wanted]


def _fake_layer(x: Any, *more: Any, **own: Any) -> Any:
    # x, gate_up, down, routing_weights, ids, both scales, activation, scales, x_scale, out_dtype
    given = x, *more
    out_dtype = given[10] if len(given) > 10 else None
    return x.new_empty(x.shape, dtype=_out(x, out_dtype))


def _fake_grouped(
    x: Any, weight: Any, rows: Any, scale_a: Any = None, scale_b: Any = None, *more: Any, **own: Any
) -> Any:
    return x.new_empty((*x.shape[:-1], weight.shape[1]), dtype=_out(x, more[0] if more else None))


def _out(x: Any, out_dtype: Any) -> Any:
    return out_dtype or (torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.places = [place for place, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
    ctx.save_for_backward(*(inputs[place] for place in ctx.places))
    ctx.others = [None if isinstance(each, torch.Tensor) else each for each in inputs]
    # A call has scales exactly if x or the weight has 8 bits.
    ctx.scaled = any(inputs[place].dtype.itemsize == 1 for place in (0, 1))
