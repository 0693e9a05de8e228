"""Formats as PyTorch operators, torch.ops.genkern.gemm_*: for torch.compile, export and autograd.

By Library.define and impl: a custom_op costs 7 us a call (pytorch issue 177109). Eager calls that need none of it go
past the operator.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from genkern.ops.fields import fields_of
from genkern.runtime.dispatch import Gemm

_LIBRARY = torch.library.Library("genkern", "FRAGMENT")
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias=None, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, str? activation=None{own}) -> Tensor"
)
# Arguments before a format's own.
_COMMON = 7


_made: dict[str, Gemm] = {}
_making = threading.Lock()


def gemm_of(op: str) -> Gemm:
    """The function of a format, with what this process's environment names, and its operator. Raises InputError."""
    from genkern.runtime.default import default_context

    # An operator is defined once, whoever asks at the same time.
    with _making:
        if op not in _made:
            gemm = Gemm(op, default_context())
            gemm.operator = define(gemm)
            _made[op] = gemm
        return _made[op]


def define(gemm: Gemm, name: str = "") -> Any:
    """The operator of a format: torch.ops.genkern.gemm_OP, or another name."""
    name = name or gemm.__name__
    own = "".join(
        f", {'str' if field.words else 'int'} {field.name}={field.default!r}" for field in fields_of(gemm.op.fields)
    )
    _LIBRARY.define(name + _SCHEMA.format(own=own.replace("'", '"')), tags=[torch.Tag.pt2_compliant_tag])
    names = [field.name for field in fields_of(gemm.op.fields)]

    def run(*given: Any) -> Any:
        return gemm.direct(*given[:_COMMON], **dict(zip(names, given[_COMMON:], strict=False)))

    for key in ("CUDA", "CPU"):
        _LIBRARY.impl(name, run, key)
    qualified = f"genkern::{name}"
    torch.library.register_fake(qualified, _fake, lib=_LIBRARY)
    torch.library.register_autograd(qualified, _backward, setup_context=_setup, lib=_LIBRARY)
    return getattr(torch.ops.genkern, name).default


def _fake(x: Any, weight: Any, bias: Any = None, out_dtype: Any = None, *more: Any, **own: Any) -> Any:
    if out_dtype is None:
        out_dtype = torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype
    return x.new_empty((*x.shape[:-1], weight.shape[-2]), dtype=out_dtype)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, _, scale_a, scale_b, activation, *_ = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.scaled = scale_a is not None or scale_b is not None
    ctx.activation, ctx.inputs = activation, len(inputs)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    """By the library, as torch.nn.functional.linear's; what an activation was given is computed anew."""
    if ctx.scaled:
        raise NotImplementedError("genkern has no gradient of products with scales: call them under torch.no_grad()")
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
    of_x = (grad @ weight).to(type_x) if ctx.needs_input_grad[0] else None
    of_weight = None
    if ctx.needs_input_grad[1]:
        of_weight = grad.mT @ x if weight.dim() == 3 else flat.mT @ x.reshape(-1, x.shape[-1])
        of_weight = of_weight.to(type_weight)
    of_bias = flat.sum(0).to(bias.dtype) if bias is not None and ctx.needs_input_grad[2] else None
    return of_x, of_weight, of_bias, *[None] * (ctx.inputs - 3)
