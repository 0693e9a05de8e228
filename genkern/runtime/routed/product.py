"""Product: one product with a weight per group of rows, as a function of its operands, by its winner or the library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import BY_TORCH, DTYPES
from genkern.gemm.operand import Operand, contiguous_strides
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import check_problem, library_of, operands_of
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.implementation import Function, Launched, aligned, as_stored, by_winner, launching
from genkern.runtime.launch.native_call import Form
from genkern.runtime.launch.parameters import ALIGNMENT, Layout
from genkern.runtime.launch.prepared_call import LiveGpu, PreparedCall


@dataclass(frozen=True)
class Product:
    """The function `call(a, weight, *others)` that returns C; `tuned` is True if a winner computes it.

    `others` are the remaining operands in the format's order. `into(c, a, weight, *others)` writes C into the
    contiguous tensor `c`; None if only `call` exists.
    """

    call: Function
    tuned: bool
    into: Function | None = None


def product_of(context: Context, problem: GemmProblem, tensors: Mapping[str, Any]) -> Product:
    """Return what computes the problem. `tensors` has the weight [groups, columns, K] as "b".

    `tensors` has the operands whose layouts later calls will share; all others must be contiguous as stored. Raises
    InputError if a tensor does not fit its operand.
    """
    check_problem(problem, "")
    a, b, _, *others = operands_of(problem)
    for operand in (a, *others):
        if operand.name in tensors:
            _require(operand, tensors[operand.name])
    library = by_library(problem)

    def launched(gpu: LiveGpu, choice: Choice) -> Launched:
        return _launched(context, gpu, problem, choice, tensors, library)

    found = by_winner(context, tensors[b.name].get_device(), problem, library, launched)
    return Product(library, False) if found is None else Product(found.call, True, found.into)


def by_library(problem: GemmProblem) -> Function:
    """Return the library's product of the same operands. Raise InputError if the format has none."""
    function = library_of(problem.op)
    if function is None:
        raise InputError(f"{problem.op} has no library.py, so nothing serves problems that are not tuned")
    a, b, _, *others = operands_of(problem)

    def call(rows: Any, weight: Any, *extra: Any) -> Any:
        named = {operand.name: tensor.reshape(operand.shape) for operand, tensor in zip(others, extra, strict=True)}
        return function(problem, {a.name: rows, b.name: weight.mT, **named})

    return call


def _launched(
    context: Context,
    gpu: LiveGpu,
    problem: GemmProblem,
    choice: Choice,
    tensors: Mapping[str, Any],
    library: Function,
) -> Launched:
    """Return what launches the winner. Raises ResultsError or LaunchError for unsuitable layouts."""
    import torch

    a, b, c, *others = operands_of(problem)
    layouts = {operand.name: _contiguous(operand) for operand in (a, b, c, *others)}
    weight = tensors[b.name].mT
    layouts[b.name] = Layout.of(weight.shape, weight.stride(), b.row_major, weight.element_size())
    if a.name in tensors:
        rows = tensors[a.name]
        layouts[a.name] = Layout.of(rows.shape, rows.stride(), a.row_major, rows.element_size())
    prepared = PreparedCall(gpu, choice, layouts, problem.M)

    def stored(rows: Any, weight: Any, *extra: Any) -> tuple[Any, ...]:
        if rows.data_ptr() % ALIGNMENT and rows.is_contiguous():
            rows = rows.clone()
        return (rows, weight, *(as_stored(tensor, operand) for tensor, operand in zip(extra, others, strict=True)))

    shape, dtype = c.tensor_shape, getattr(torch, DTYPES[c.dtype].torch)
    given = (operand for operand in others if operand.name in tensors)
    is_stored = all(is_as_stored(tensors[operand.name], operand) for operand in given)
    traits = Form(2 + len(others), shape, contiguous_strides(shape), dtype)
    kept = aligned(stored, prepared.alignment) if choice.sums else stored
    return launching(context, gpu, problem, choice, prepared, traits, library, kept, is_stored)


def _contiguous(operand: Operand) -> Layout:
    shape = operand.tensor_shape
    # Strides as stored: a column-major matrix is stored as its transpose.
    strides = contiguous_strides(operand.storage_shape)
    strides = strides if operand.row_major else (*strides[:-2], strides[-1], strides[-2])
    return Layout.of(shape, strides, operand.row_major, DTYPES[operand.dtype].size_bytes)


def is_as_stored(tensor: Any, operand: Operand) -> bool:
    """Return True if kernels can read the tensor in place, apart from its alignment."""
    lies = tensor if tensor.dim() < 2 or operand.row_major else tensor.reshape(operand.shape).mT
    return bool(lies.is_contiguous() and lies.data_ptr() == tensor.data_ptr())


def _require(operand: Operand, tensor: Any) -> None:
    wanted = f"{list(operand.shape)} of {DTYPES[operand.dtype].torch}"
    if tensor is None:
        raise InputError(f"{operand.name} is missing: give {wanted}")
    if tensor.numel() != operand.elements or str(tensor.dtype) != f"torch.{DTYPES[operand.dtype].torch}":
        raise InputError(f"{operand.name} is {list(tensor.shape)} of {str(tensor.dtype)[6:]}, not {wanted}")


def name_of(tensor: Any, what: str) -> str:
    """Return genkern's name of a tensor's type. Raise InputError for a type that no operand has."""
    name = BY_TORCH.get(str(tensor.dtype))
    if name is None:
        raise InputError(f"{what} is {tensor.dtype}: use one of {', '.join(sorted(BY_TORCH))}")
    return name


def is_row_major_b(weight: Any) -> bool:
    """Return True if B [groups, K, columns] of a weight [groups, columns, K] is row-major."""
    return bool(weight.stride(-1) != 1 and weight.stride(-2) == 1)


def require_one_device(tensors: Any) -> None:
    """Raise InputError if the tensors are on several devices."""
    devices = sorted({each.get_device() for each in tensors})
    if len(devices) > 1:
        raise InputError(f"operands are on several devices ({', '.join(map(str, devices))}): move them to one")
