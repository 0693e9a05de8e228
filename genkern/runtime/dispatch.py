"""Gemm: one format as a function of tensors, which launches the winner for what it is given, or calls the library.

What depends on shapes, types and strides alone is found once, and kept under them: a call then is one lookup, the
output's memory, and the launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from genkern.ops.op import get_op
from genkern.runtime.context import Context
from genkern.runtime.given import Given
from genkern.runtime.served import Served, by_library, serve

# Shapes that are kept: a server with dynamic batches has thousands, and each takes some 10 KB.
_MOST_KEPT = 4096
# Types of tensors that are what they seem.
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Gemm:
    """One format, and what `context` has tuned for it."""

    def __init__(self, op: str, context: Context) -> None:
        """Raises InputError where there is no such format."""
        self.op = get_op(op)
        self._context = context
        self._kept: dict[object, Served] = {}
        self._before: dict[object, Served] = {}
        self.__name__ = f"gemm_{op}"
        # Its operator (torch_ops), for calls that are traced or differentiated.
        self.operator: Callable[..., Any] | None = None
        context.on_change(self._renew)

    def _renew(self) -> None:
        self._before, self._kept = {**self._before, **self._kept} if self._kept else self._before, {}

    def __call__(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        out_dtype: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        activation: str | None = None,
        **own: int | str,
    ) -> Any:
        """activation(scale_a * scale_b * (x @ weight.T) + bias), of x [..., K] and weight [N, K], as [..., N].

        bias is [N], in the output's type. out_dtype is that of x unless given, of 8-bit operands bfloat16. Which scales
        a format has, and their shapes, its operands say; `own` are its own fields (block sizes, for example).
        activation is one of "relu", "gelu" (exact) and "silu". Raises InputError for operands that do not belong
        together, and whatever the library raises; never because nothing is tuned.
        """
        if self.operator is not None and not _is_plain(x, weight, bias, scale_a, scale_b):
            if not torch.compiler.is_compiling() and torch._C._functorch.maybe_current_level() is not None:
                # torch.func transforms what they know; of an operator with a backward pass they refuse grad and jvp.
                given = Given.of(self.op, x, weight, bias, out_dtype, scale_a, scale_b, activation, own)
                return by_library(given)(x, weight, bias, scale_a, scale_b)
            return self.operator(x, weight, bias, out_dtype, scale_a, scale_b, activation, **own)
        return self.direct(x, weight, bias, out_dtype, scale_a, scale_b, activation, **own)

    def direct(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        out_dtype: Any = None,
        scale_a: Any = None,
        scale_b: Any = None,
        activation: str | None = None,
        **own: int | str,
    ) -> Any:
        """The same of tensors that have memory, and without a gradient."""
        key: object = (
            *(x.shape, x.stride(), x.dtype, x.get_device(), weight.shape, weight.stride(), weight.dtype),
            *(weight.get_device(), out_dtype, activation),
        )
        if bias is not None or scale_a is not None or scale_b is not None or own:
            key = key, _form(bias), _form(scale_a), _form(scale_b), *sorted(own.items())
        kept = self._kept
        served = kept.get(key)
        if served is None:
            # torch.jit.trace, whose sizes are tensors: no key that has them is found.
            if self.operator is not None and x.dim() and type(x.shape[0]) is not int:
                return self.operator(x, weight, bias, out_dtype, scale_a, scale_b, activation, **own)
            # A graph is captured with what served its warm-up, which is loaded.
            before = self._before.get(key)
            if before is not None and self._context.capturing(x.get_device()):
                return before(x, weight, bias, scale_a, scale_b)
            given = Given.of(self.op, x, weight, bias, out_dtype, scale_a, scale_b, activation, own)
            served = serve(self._context, given, x, weight)
            if len(kept) >= _MOST_KEPT:
                kept.clear()
                self._before.clear()
            kept[key] = served
        return served(x, weight, bias, scale_a, scale_b)


def _is_plain(x: Any, weight: Any, bias: Any, scale_a: Any, scale_b: Any) -> bool:
    """Whether a call needs nothing of PyTorch's dispatcher: no gradient, tracing, mode or subclass of tensors."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or type(x) not in PLAIN:
        return False
    if type(weight) not in PLAIN or torch._C._functorch.maybe_current_level() is not None:
        return False
    if forward_ad._current_level >= 0:
        return False
    wants_gradients = torch.is_grad_enabled()
    if wants_gradients and (x.requires_grad or weight.requires_grad):
        return False
    for more in (bias, scale_a, scale_b):
        if more is not None and (type(more) not in PLAIN or (wants_gradients and more.requires_grad)):
            return False
    return True


def _form(tensor: Any) -> object:
    """What of a tensor decides who serves a call."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype, tensor.get_device())
