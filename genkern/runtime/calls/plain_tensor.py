"""Which tensors kernels may read by address, and which ones PyTorch's own functions must multiply."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

# Types that override no operators.
PLAIN = (torch.Tensor, torch.nn.Parameter)
# Subclasses that stand for plain tensors while PyTorch traces a program.
_TRACING = (FakeTensor, FunctionalTensor)
_DISPATCH = torch.Tensor.__torch_dispatch__
_FUNCTIONS = (getattr(torch.Tensor.__torch_function__, "__func__", None), torch._C._disabled_torch_function_impl)


def is_plain(tensor: Any) -> bool:
    """Return True if the tensor is dense and strided, and its memory holds its values.

    False for subclasses, sparse, nested and meta tensors, lazy negation and conjugation (`x.conj().imag`, `x.conj()`),
    and zeros without memory (forward-mode differentiation creates them).
    """
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_neg() or tensor.is_conj() or tensor.is_meta or tensor._is_zerotensor())
    )


def multiplies_itself(tensor: Any) -> bool:
    """Return True if the tensor defines how it is multiplied: nested, sparse, quantised, sharded, masked.

    A subclass of Parameter that overrides only __torch_function__ is an ordinary matrix (vLLM's weights are).
    """
    kind = type(tensor)
    if kind in PLAIN:
        return tensor.layout is not torch.strided or bool(tensor.is_nested)
    if issubclass(kind, _TRACING):
        return False
    if kind.__torch_dispatch__ is not _DISPATCH:
        return True
    function = kind.__torch_function__
    return not issubclass(kind, torch.nn.Parameter) and getattr(function, "__func__", function) not in _FUNCTIONS
