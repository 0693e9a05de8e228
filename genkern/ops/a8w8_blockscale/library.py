"""The product by PyTorch's own calls on any device, which calls fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.a8w8_blockscale import BlockScale
from genkern.ops.fields import own_values


def library(problem: GemmProblem, operands: Mapping[str, Any]) -> Any:
    """Return C [M, N] of a [M, K], b [K, N], the scales of their blocks and, if the problem has one, bias [N].

    Multiplies every element by its scale in float32, then A by B in float32.
    """
    import torch

    a, b, bias = operands["a"].float(), operands["b"].float(), operands.get("bias")
    block = own_values(BlockScale, problem)
    of_a = _spread(operands["scale_a"], (block.block_m, block.block_k), a.shape)
    of_b = _spread(operands["scale_b"], (block.block_n, block.block_k), b.mT.shape)
    c = (a * of_a) @ (b * of_b.mT)
    return (c if bias is None else c + bias.float()).to(getattr(torch, DTYPES[problem.dtype_c].torch))


def _spread(scales: Any, block: tuple[int, int], shape: Any) -> Any:
    """Return the scale of each element of a matrix. The last blocks may be smaller."""
    for dimension, size in enumerate(block):
        scales = scales.repeat_interleave(size, dimension).narrow(dimension, 0, shape[dimension])
    return scales
