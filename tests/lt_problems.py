"""Problems and operands on the host for the tests of the cublaslt backend."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from genkern.gemm.dtypes import DTYPES
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import get_op
from genkern.runtime.backends.lt_api import Api
from genkern.runtime.backends.lt_matmul import Pointers

WORKSPACE_BYTES = 8 << 20


def operands_of(problem: GemmProblem, padding: int = 0, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Small integers in every operand, scales that are powers of two; rows `padding` elements longer than they are."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for operand in get_op(problem.op).operands(problem):
        *outer, columns = operand.stored_shape
        matrix = operand.role in ("activation", "weight", "output")
        stored = torch.zeros(*outer, columns + (padding if matrix else 0))
        if operand.role == "scale":
            stored = 2.0 ** torch.randint(-2, 3, stored.shape, generator=generator).float()
        elif operand.role != "output":
            stored = torch.randint(-4, 5, stored.shape, generator=generator).float()
        x = stored.to(getattr(torch, DTYPES[operand.dtype].torch)).to(device)[..., :columns]
        made[operand.name] = x if operand.row_major else x.transpose(-1, -2)
    return made


def expected_of(problem: GemmProblem, operands: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """C in float64, by definition."""
    a, b = (operands[name].double() for name in ("a", "b"))
    for name, x in (("a", a), ("b", b)):
        if (scale := operands.get(f"scale_{name}")) is not None:
            # Those of blocks of B are laid out as its transpose.
            blocks = operands["scale_b"].dim() == 2 and operands["scale_b"].shape[0] != 1
            x *= _spread((scale.T if name == "b" and blocks else scale).double(), x.shape)
    c = a @ b
    if problem.bias:
        c += operands["bias"].double()
    return c.relu() if problem.activation == "relu" else c


def _spread(scale: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """A scale for each element: one for all, for a row or a column, or for blocks of 128."""
    if scale.dim() < 2:
        return scale
    for dim, size in enumerate(shape):
        if 1 < scale.shape[dim] < size:
            scale = scale.repeat_interleave(128, dim).narrow(dim, 0, size)
    return scale


def leading_of(operands: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Leading dimensions of the matrices in elements."""
    return {name: max(operands[name].stride()) for name in ("a", "b", "c")}


def pointers_of(operands: Mapping[str, torch.Tensor]) -> Pointers:
    """Where they lie."""
    names = (field.name for field in fields(Pointers))
    return Pointers(**{name: operands[name].data_ptr() for name in names if name in operands})


def variable(library: Api, name: str, kind: Any = ctypes.c_int) -> Any:
    """A variable of the fake library."""
    return kind.in_dll(ctypes.CDLL(library.path), name)
