"""Number formats as PyTorch operators torch.ops.genkern.gemm_*, for torch.compile, torch.export and autograd.

An operator takes the arguments of its format's function (genkern.runtime.calls.dispatch.Gemm) in the same order, then
the format's own fields, and returns a new tensor. It has a fake implementation and a backward pass. It is defined with
Library.define and Library.impl, since a torch.library.custom_op costs 7 us per call (pytorch issue 177109). Eager calls
that need none of this bypass the operator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from genkern.ops.fields import Field, fields_of
from genkern.runtime.calls.dispatch import Calls, Gemm

_LIBRARY = torch.library.Library("genkern", "FRAGMENT")
_SCHEMA = (
    "(Tensor x, Tensor weight, Tensor? bias=None, ScalarType? out_dtype=None, Tensor? scale_a=None, "
    "Tensor? scale_b=None, str? activation=None{own}) -> Tensor"
)

_made: dict[str, Any] = {}
_making = threading.Lock()
C = TypeVar("C", bound=Calls)


def gemm_of(op: str) -> Gemm:
    """Return the function of a format for the bundles that the environment names. Raises InputError."""
    from genkern.runtime.process.default_context import default_context

    def make() -> Gemm:
        gemm = Gemm(op, default_context())
        gemm.operator = define(gemm)
        return gemm

    return create_once(op, make)


def create_once(op: str, make: Callable[[], C]) -> C:
    """Return the function of a format. `make` creates it and its operator once, also if several threads ask."""
    with _making:
        if op not in _made:
            _made[op] = make()
        made: C = _made[op]
        return made


def define(gemm: Gemm, name: str = "") -> Any:
    """Define and return the operator of a format: torch.ops.genkern.gemm_OP, or `name`."""
    gradients, fields = Gradients(gemm), fields_of(gemm.op.fields)
    return define_calls(gemm, name or gemm.__name__, _SCHEMA, fields, _fake, gradients.backward, gradients.setup)


def define_calls(
    calls: Calls,
    name: str,
    schema: str,
    fields: Sequence[Field],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    setup: Callable[..., None],
) -> Any:
    """Define and return the operator `name` of `calls`; `schema` has "{own}" for the format's own fields."""
    names = [field.name for field in fields]

    def run(*given: Any) -> Any:
        common = len(given) - len(names)
        own = zip(names, given[common:], strict=True)
        # A field with words that is not given is None: it is left out, and the dispatcher derives it from the tensors.
        return calls.direct(*given[:common], {name: value for name, value in own if value is not None})

    return define_plain(name, schema, fields, run, fake, backward, setup)


def define_plain(
    name: str,
    schema: str,
    fields: Sequence[Field],
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., None] | None = None,
) -> Any:
    """Define and return an operator that calls `run` with all its arguments in their order."""
    own = "".join(f", str? {f.name}=None" if f.words else f", int {f.name}={f.default}" for f in fields)
    _LIBRARY.define(name + schema.format(own=own), tags=[torch.Tag.pt2_compliant_tag])
    operator = getattr(torch.ops.genkern, name).default
    defaults = [argument.default_value for argument in operator._schema.arguments]
    for key in ("CUDA", "CPU"):
        # PyTorch leaves out trailing arguments that have their default values.
        _LIBRARY.impl(name, lambda *given: run(*given, *defaults[len(given) :]), key)
    qualified = f"genkern::{name}"
    torch.library.register_fake(qualified, fake, lib=_LIBRARY)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_LIBRARY)
    return operator


def _fake(x: Any, weight: Any, bias: Any = None, out_dtype: Any = None, *more: Any, **own: Any) -> Any:
    if out_dtype is None:
        out_dtype = torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype
    return x.new_empty((*x.shape[:-1], weight.shape[-2]), dtype=out_dtype)


@dataclass(frozen=True)
class Gradients:
    """The backward pass of a format's operator: `setup` and `backward` for torch.library.register_autograd."""

    gemm: Gemm

    def setup(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, bias, _, scale_a, scale_b, activation, *own = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.scaled = scale_a is not None or scale_b is not None
        ctx.activation, ctx.inputs = activation, len(inputs)
        named = zip((field.name for field in fields_of(self.gemm.op.fields)), own, strict=False)
        ctx.own = {name: value for name, value in named if value is not None}

    def backward(self, ctx: Any, grad: Any) -> tuple[Any, ...]:
        """Return the gradients of the operator's inputs.

        A product that is not tuned is computed as in the backward pass of torch.nn.functional.linear. The input of an
        activation is computed again, not stored.
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
            # If this pass is itself differentiated, it must be so through the activation's input, too.
            twice = torch.is_grad_enabled()
            before = x @ weight.mT if weight.dim() == 3 else torch.nn.functional.linear(x, weight, bias)
            before = before if twice else before.detach().requires_grad_()
            with torch.enable_grad():
                after = getattr(torch.nn.functional, ctx.activation)(before)
            (grad,) = torch.autograd.grad(after, before, grad.to(after.dtype), create_graph=twice)
        grad = grad.to(x.dtype)
        flat = _as_rows(grad)
        of_x = self._product(grad, weight.mT, ctx.own).to(type_x) if ctx.needs_input_grad[0] else None
        of_weight = None
        if ctx.needs_input_grad[1]:
            rows, columns = (grad, x) if weight.dim() == 3 else (flat, _as_rows(x))
            of_weight = self._product(rows.mT, columns.mT, ctx.own).to(type_weight)
        of_bias = flat.sum(0).to(bias.dtype) if bias is not None and ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, *[None] * (ctx.inputs - 3)

    def _product(self, x: Any, weight: Any, own: Mapping[str, Any]) -> Any:
        return self.gemm(x, weight, **own) if self.gemm.is_tuned(x, weight, own) else x @ weight.mT


def _as_rows(x: Any) -> Any:
    """Return x [..., K] as a matrix [rows, K]; also if K is 0, for which reshape(-1, K) is ambiguous."""
    return x.flatten(0, -2) if x.dim() > 1 else x[None]
