"""Weights laid out beforehand, so that what a matrix instruction takes lies together; and formats that read them so.

Of so many rows of a weight [N, K] (16, as AITER has them) pieces of 16 bytes take turns: first the first piece of each
row, then the second of each. Source of the layout: ROCm/aiter, aiter/ops/shuffle.py (shuffle_weight).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.fields import word

_PIECE_BYTES = 16
# AITER's two, and one of 8 rows: as many as the blocks of 128 bytes have that wgmma reads shared memory in (PTX ISA,
# "Core matrix").
LAYOUTS = {"n16k16": (16, 16), "n32k16": (32, 16), "n8k16": (8, 16)}
# AITER asks for whole pairs of what the second number counts.
_PAIR = 2
# Of random int8 inputs.
_RANDOM_INT8 = 32


def shuffle_weight(weight: Any, layout: tuple[int, int] = (16, 16)) -> Any:
    """A weight [..., N, K] laid out as AITER's shuffle_weight does: of the same shape and type, contiguous.

    `layout` is how many rows take turns, and half of what must divide K. Raises InputError unless the first divides N,
    and twice the second K, and is whole pieces of 16 bytes.
    """
    return _laid_out(weight, *_parts(weight, layout))


def _laid_out(weight: Any, rows: int, piece: int) -> Any:
    """The weight with pieces of so many elements in turn."""
    *lead, n, k = weight.shape
    parts = weight.reshape(*lead, n // rows, rows, k // piece, piece)
    return parts.transpose(-3, -2).contiguous().view(weight.shape)


def unshuffle_weight(weight: Any, layout: tuple[int, int] = (16, 16)) -> Any:
    """The weight [..., N, K] of which shuffle_weight made this one. Raises InputError as that does."""
    rows, piece = _parts(weight, layout)
    *lead, n, k = weight.shape
    parts = weight.reshape(*lead, n // rows, k // piece, rows, piece)
    return parts.transpose(-3, -2).contiguous().view(weight.shape)


def _parts(weight: Any, layout: tuple[int, int]) -> tuple[int, int]:
    """Rows that take turns, and elements of a piece."""
    rows, along = layout
    piece = _PIECE_BYTES // weight.element_size()
    if weight.dim() < 2 or rows < 1 or along < 1:
        raise InputError(f"weight {list(weight.shape)}, layout {layout}: give [..., N, K], and two numbers from 1")
    n, k = weight.shape[-2:]
    if n % rows or k % (_PAIR * along) or (_PAIR * along) % piece:
        raise InputError(
            f"weight {list(weight.shape)} cannot be laid out as {layout}: N must be a multiple of {rows}, and K of "
            f"{_PAIR * along}, which is one of the {piece} elements in 16 bytes"
        )
    return rows, piece


def layout_field() -> Any:
    """The field of a format that says how its weights are laid out."""
    return word(*LAYOUTS, help="shuffled weights: how many rows take turns, and half of what divides K")


def shuffled(b: Operand, layout: tuple[int, int]) -> Operand:
    """B [K, N], whose storage is that of a weight [N, K] laid out so."""
    return replace(b, together=layout[0], piece=_PIECE_BYTES // DTYPES[b.dtype].size_bytes)


def refuse_shuffled(problem: GemmProblem, layout: tuple[int, int]) -> str:
    """Why the weights of a problem cannot be laid out so, or ""."""
    rows, along = layout
    if problem.row_major_b:
        return "weights are shuffled as they lie with rows along K (rowMajorB: N)"
    if problem.N % rows or problem.K % (_PAIR * along):
        return f"shuffled weights have N in multiples of {rows} and K in multiples of {_PAIR * along}"
    return ""


def shared_shuffled(shared: tuple[int, int, int], layout: tuple[int, int]) -> tuple[int, int, int]:
    """Op.shared_scale of a format whose weights are laid out so, and that without has `shared`."""
    rows, columns, along_k = shared
    return rows, math.lcm(columns, layout[0]), math.lcm(along_k, _PAIR * layout[1])


def exact_shuffled(problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
    """Op.exact_inputs of formats whose weights are shuffled: the numbers, as they lie."""
    if operand.dtype == "int8" and numbers.is_floating_point():
        numbers = (numbers * _RANDOM_INT8).round().clamp(-127, 127)
    return _laid_out(numbers.mT, operand.together, operand.piece).view(operand.storage_shape).mT


def plain_weight(b: Any, problem: GemmProblem, layout: tuple[int, int]) -> Any:
    """B [K, N] of what kernels are given, whatever its shape. Raises InputError where it cannot be laid out so."""
    return unshuffle_weight(b.mT.reshape(problem.N, problem.K), layout).mT
