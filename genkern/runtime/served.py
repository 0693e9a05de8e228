"""Who serves a call, as a function of its tensors: a winner's launches, or the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from genkern.errors import GenkernError, InputError, LaunchError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import library_of
from genkern.runtime.context import Context
from genkern.runtime.given import Given
from genkern.runtime.launch.algorithm_call import AlgorithmCall
from genkern.runtime.launch.parameters import ALIGNMENT, Layout
from genkern.runtime.launch.prepared import Gpu, PreparedCall
from genkern.runtime.table import Choice

# x, weight, bias, scale_a and scale_b to the result.
Served = Callable[[Any, Any, Any, Any, Any], Any]
_PLACES = {"bias": 0, "scale_a": 1, "scale_b": 2}


def serve(context: Context, given: Given, x: Any, weight: Any) -> Served:
    """Who serves calls that are given this, with x and weight that lie as these do."""
    problem, library = given.problem, by_library(given)
    if problem is None:
        return library
    gpu = context.gpu(given.device)
    if gpu is None:
        context.watched(None, problem, None)
        return library
    choice = context.find(gpu, problem)
    context.watched(gpu, problem, choice)
    try:
        if choice.call is not None or choice.algorithm:
            return _launched(context, gpu, given, problem, choice, x, weight, library)
        context.say(problem, f"{choice.why}: the library serves it")
    except GenkernError as error:
        context.say(problem, f"{error}: the library serves it")
    return library


def by_library(given: Given) -> Served:
    """The library's product, with everything that belongs to it; differentiable where the library's is."""
    problem = given.problem
    if problem is None:
        return _of_nothing(given)
    product = library_of(problem.op)
    if product is None:
        raise InputError(
            f"{problem.op} has no library.py, so nothing serves what is not tuned (docs/your_own_format.md)"
        )
    shape = *given.lead, given.n

    def call(x: Any, weight: Any, bias: Any, scale_a: Any, scale_b: Any) -> Any:
        import torch

        extra = bias, scale_a, scale_b
        # Matrices as the format declares them; vectors stay as they are.
        named = {
            operand.name: extra[_PLACES[name]].reshape(operand.shape)
            for operand, name in zip(given.extra_operands, given.extra, strict=True)
        }
        operands = {"a": x.reshape(problem.M, problem.K), "b": weight.mT, **named}
        c = product(problem, operands).reshape(shape)
        return c if problem.activation == "none" else getattr(torch.nn.functional, problem.activation)(c)

    return call


def _of_nothing(given: Given) -> Served:
    """No rows or columns give no elements, and sums over no K are zero."""

    def call(x: Any, weight: Any, bias: Any, scale_a: Any, scale_b: Any) -> Any:
        import torch

        c = torch.zeros((*given.lead, given.n), dtype=given.out, device=x.device)
        c = c if bias is None else c + bias.to(given.out)
        return c if given.activation == "none" else getattr(torch.nn.functional, given.activation)(c)

    return call


def _launched(
    context: Context,
    gpu: Gpu,
    given: Given,
    problem: GemmProblem,
    choice: Choice,
    x: Any,
    weight: Any,
    library: Served,
) -> Served:
    """The winner's launches, or those of the library's best. Raises ResultsError or LaunchError where they cannot be
    made for what lies so.
    """
    flat = _as_matrix(x)
    rows = x.new_empty((problem.M, problem.K)) if flat is None else flat
    layouts = {
        "a": Layout.of(rows.shape, rows.stride(), True, x.element_size()),
        "b": Layout.of(weight.shape[::-1], weight.stride()[::-1], problem.row_major_b, weight.element_size()),
        "c": Layout(problem.M, problem.N, problem.N, given.out.itemsize),
    }
    for operand in given.extra_operands:
        *_, columns = operand.stored_shape
        element_bytes = DTYPES[operand.dtype].size_bytes
        layouts[operand.name] = Layout(operand.elements // columns, columns, columns, element_bytes)
    prepared: Callable[[tuple[int, ...]], bool]
    if choice.algorithm:
        prepared = AlgorithmCall(gpu, problem, choice.algorithm, layouts)
    else:
        prepared = PreparedCall(gpu, choice, layouts, problem.M)
    shape, out_dtype, empty = (*given.lead, given.n), given.out, gpu.empty
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    gathers, size = flat is None, (problem.M, problem.K)
    extra_places = [(_PLACES[name], operand) for operand, name in zip(given.extra_operands, given.extra, strict=True)]
    failed = False

    def call(x: Any, weight: Any, bias: Any, scale_a: Any, scale_b: Any) -> Any:
        nonlocal failed
        a = x.reshape(size) if gathers else x
        out = empty(shape, strides, out_dtype)
        addresses = a.data_ptr(), weight.data_ptr(), out.data_ptr()
        if extra_places:
            extra = bias, scale_a, scale_b
            kept = [as_stored(extra[place], operand) for place, operand in extra_places]
            addresses += tuple(tensor.data_ptr() for tensor in kept)
        try:
            if not failed and prepared(addresses):
                return out
        except LaunchError as error:
            failed = True
            context.say(problem, f"{error}: the library serves it")
        return library(x, weight, bias, scale_a, scale_b)

    return call


def _as_matrix(x: Any) -> Any:
    """x [..., K] as [M, K] in the same memory; None where it does not lie so."""
    try:
        return x.view(-1, x.shape[-1])
    except RuntimeError:
        return None


def as_stored(tensor: Any, operand: Operand) -> Any:
    """The tensor as kernels read the operand: without gaps, at a multiple of 16 bytes; copied where it lies otherwise.

    Scales and biases are small, and often parts of larger tensors.
    """
    if tensor.dim() > 1 and not operand.row_major:
        tensor = tensor.reshape(operand.shape).mT
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
