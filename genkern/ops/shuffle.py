"""Shuffled weights, which lie in memory in the order in which matrix instructions read them; for formats that use them.

The rows of a weight [N, K] are taken in blocks of, say, 16 (as AITER does). In a block, the first 16 bytes of every row
come first, then the second 16 bytes of every row, and so on. Source of the layout: ROCm/aiter, aiter/ops/shuffle.py
(shuffle_weight).
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
# Two layouts of AITER, and one with blocks of 8 rows, as the 128-byte blocks have in which wgmma reads shared memory
# (PTX ISA, "Core matrix").
LAYOUTS = {"n16k16": (16, 16), "n32k16": (32, 16), "n8k16": (8, 16)}
# K must be a multiple of this many times the layout's second number, as AITER requires.
_PAIR = 2
# Scale of random int8 inputs.
_RANDOM_INT8 = 32


def shuffle_weight(weight: Any, layout: tuple[int, int] = (16, 16)) -> Any:
    """Return a weight [..., N, K] in the layout of AITER's shuffle_weight, with the same shape and type, contiguous.

    `layout` is (rows in a block, half of the number that must divide K). Raises InputError unless the first divides N,
    twice the second divides K, and twice the second is a multiple of the elements in 16 bytes.
    """
    return _laid_out(weight, *_parts(weight, layout))


def _laid_out(weight: Any, rows: int, piece: int) -> Any:
    """Return the weight with the pieces of `piece` elements of `rows` rows interleaved."""
    *lead, n, k = weight.shape
    parts = weight.reshape(*lead, n // rows, rows, k // piece, piece)
    return parts.transpose(-3, -2).contiguous().view(weight.shape)


def unshuffle_weight(weight: Any, layout: tuple[int, int] = (16, 16)) -> Any:
    """Return the weight [..., N, K] from which `shuffle_weight` made this one. Raises InputError as it does."""
    rows, piece = _parts(weight, layout)
    *lead, n, k = weight.shape
    parts = weight.reshape(*lead, n // rows, k // piece, rows, piece)
    return parts.transpose(-3, -2).contiguous().view(weight.shape)


def _parts(weight: Any, layout: tuple[int, int]) -> tuple[int, int]:
    """Return the rows of a block, and the elements of a piece."""
    rows, along = layout
    piece = _PIECE_BYTES // weight.element_size()
    if weight.dim() < 2 or rows < 1 or along < 1:
        raise InputError(
            f"weight {list(weight.shape)}, layout {layout}: give [..., N, K] and a layout of two positive numbers"
        )
    n, k = weight.shape[-2:]
    if n % rows or k % (_PAIR * along) or (_PAIR * along) % piece:
        raise InputError(
            f"weight {list(weight.shape)} cannot be laid out as {layout}: N must be a multiple of {rows}, K a multiple "
            f"of {_PAIR * along}, and that a multiple of the {piece} elements in 16 bytes"
        )
    return rows, piece


def layout_field() -> Any:
    """Return the field of a format that says how its weights are shuffled."""
    return word(*LAYOUTS, help="shuffled weights: rows that are interleaved (n), and half of what must divide K (k)")


def shuffled(b: Operand, layout: tuple[int, int]) -> Operand:
    """Return operand B [K, N] stored as a weight [N, K] that is shuffled in this layout."""
    return replace(b, together=layout[0], piece=_PIECE_BYTES // DTYPES[b.dtype].size_bytes)


def refuse_shuffled(problem: GemmProblem, layout: tuple[int, int]) -> str:
    """Return why a problem's weights cannot be shuffled in this layout, or ""."""
    rows, along = layout
    if problem.row_major_b:
        return "shuffled weights must be contiguous along K (rowMajorB: N)"
    if problem.N % rows or problem.K % (_PAIR * along):
        return f"shuffled weights need an N that is a multiple of {rows} and a K that is a multiple of {_PAIR * along}"
    return ""


def shared_shuffled(shared: tuple[int, int, int], layout: tuple[int, int]) -> tuple[int, int, int]:
    """Return `Op.shared_scale` of a format with shuffled weights, given that of the same format without shuffling."""
    rows, columns, along_k = shared
    return rows, math.lcm(columns, layout[0]), math.lcm(along_k, _PAIR * layout[1])


def exact_shuffled(problem: GemmProblem, operand: Operand, numbers: Any, generator: Any) -> Any:
    """`Op.exact_inputs` of formats with shuffled weights: the numbers in shuffled order."""
    if operand.dtype == "int8" and numbers.is_floating_point():
        numbers = (numbers * _RANDOM_INT8).round().clamp(-127, 127)
    return _laid_out(numbers.mT, operand.together, operand.piece).view(operand.storage_shape).mT


def plain_weight(b: Any, problem: GemmProblem, layout: tuple[int, int]) -> Any:
    """Return B [K, N] from shuffled weights with N * K elements. Raises InputError if the layout does not fit."""
    return unshuffle_weight(b.mT.reshape(problem.N, problem.K), layout).mT
