"""torch.ops.genkern.linears: several linear layers of one x, in programs that torch.compile reads."""

from __future__ import annotations

import functools
from typing import Any

import torch

from genkern.runtime.dispatch import Gemm
from genkern.runtime.shared.merged_weight import as_one
from genkern.runtime.torch_ops import define_plain

_SCHEMA = "(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor"


@functools.cache
def linears_of(gemm: Gemm) -> Any:
    """The operator of this process, which is defined once."""
    return define_linears(gemm)


def define_linears(gemm: Gemm, name: str = "linears") -> Any:
    """The operator: x [..., K] by weights [N, K], with biases [N] or none, as [..., sum of N].

    Weights that lie one behind the other in memory, as in a patched model, are multiplied by one call of `gemm`; others
    by PyTorch, each for itself: a compiled program goes on where a weight was given other memory. It has no gradient.
    """

    def run(x: Any, weights: list[Any], biases: list[Any]) -> Any:
        weight = as_one(weights)
        if weight is None:
            apart = zip(weights, biases or [None] * len(weights), strict=True)
            return torch.cat([torch.nn.functional.linear(x, each, bias) for each, bias in apart], -1)
        bias = None
        if biases:
            together = as_one(biases)
            bias = torch.cat(biases) if together is None else together
        return gemm.direct(x, weight, bias, None, None, None, None, {})

    def fake(x: Any, weights: list[Any], biases: list[Any]) -> Any:
        return x.new_empty((*x.shape[:-1], sum(weight.shape[0] for weight in weights)))

    return define_plain(name, _SCHEMA, (), run, fake)
