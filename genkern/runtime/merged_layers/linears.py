"""torch.ops.genkern.linears: several linear layers with one x, for programs that torch.compile traces."""

from __future__ import annotations

import functools
from typing import Any

import torch

from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.merged_layers.invariant_mode import LayerMode, as_rows, layer_mode_of
from genkern.runtime.merged_layers.merged_weight import as_one
from genkern.runtime.process.torch_ops import define_plain

_SCHEMA = "(Tensor x, Tensor[] weights, Tensor[] biases) -> Tensor"


@functools.cache
def linears_of(gemm: Gemm) -> Any:
    """Return the operator of this process, which is defined once."""
    return define_linears(gemm)


def define_linears(gemm: Gemm, name: str = "linears") -> Any:
    """Define and return the operator, which multiplies x [..., K] by several weights [N, K] and adds their biases.

    Its result is [..., sum of N]. `biases` has one tensor [N] per weight, or is empty.

    If the weights are adjacent in memory, as in a patched model, one call of `gemm` multiplies them; else PyTorch
    multiplies each of them, so that a compiled program still works after a weight has moved. If calls must be
    batch-invariant when it runs, the layers' Way decides, and genkern computes all products. It has no gradient.
    """

    def run(x: Any, weights: list[Any], biases: list[Any]) -> Any:
        whole, multiply = as_one(weights), torch.nn.functional.linear
        if gemm.context.mode.is_on:
            key = *(tuple(each.shape) for each in weights), weights[0].dtype, weights[0].get_device(), bool(biases)
            is_apart = gemm.remembered(
                ("apart", key), lambda: layer_mode_of(weights, bool(biases), gemm.context) is LayerMode.APART
            )
            x, multiply = as_rows(x), call
            # Weights that have moved are concatenated, so that the order of sums stays the same.
            whole = None if is_apart else torch.cat(weights) if whole is None else whole
        if whole is None:
            apart = zip(weights, biases or [None] * len(weights), strict=True)
            return torch.cat([multiply(x, each, bias) for each, bias in apart], -1)
        bias = None
        if biases:
            together = as_one(biases)
            bias = torch.cat(biases) if together is None else together
        return call(x, whole, bias)

    def call(x: Any, weight: Any, bias: Any) -> Any:
        return gemm.direct(x, weight, bias, None, None, None, None, {})

    def fake(x: Any, weights: list[Any], biases: list[Any]) -> Any:
        return x.new_empty((*x.shape[:-1], sum(weight.shape[0] for weight in weights)))

    return define_plain(name, _SCHEMA, (), run, fake)
