"""NamedCalls: a format's calls of operands by their names, by the winner for them or by the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from genkern.errors import GenkernError, InputError, LaunchError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import check_problem, get_op, library_of
from genkern.runtime.context import Context
from genkern.runtime.launch.parameters import ALIGNMENT, Layout
from genkern.runtime.launch.prepared import Gpu, PreparedCall
from genkern.runtime.table import Choice

# Shapes that are kept: a server with dynamic batches has thousands.
_MOST_KEPT = 4096

Call = Callable[[Mapping[str, Any]], Any]


class NamedCalls:
    """One format, and what `context` has tuned for it."""

    def __init__(self, op: str, context: Context) -> None:
        """Raises InputError where there is no such format."""
        self.op = get_op(op)
        self._context = context
        self._kept: dict[object, Call] = {}
        context.on_change(self._kept.clear)

    def __call__(self, problem: GemmProblem, tensors: Mapping[str, Any]) -> Any:
        """C of the problem's operands, all but C itself, each of its `tensor_shape` and on one device.

        Raises InputError for what does not belong together, and whatever the library raises.
        """
        key = problem, tuple((each.shape, each.stride(), each.dtype, each.get_device()) for each in tensors.values())
        call = self._kept.get(key)
        if call is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            call = self._kept[key] = self._served(problem, tensors)
        return call(tensors)

    def _served(self, problem: GemmProblem, tensors: Mapping[str, Any]) -> Call:
        check_problem(problem, "")
        for operand in self.op.operands(problem):
            if operand.role != "output":
                _require(operand, tensors)
        (index, *others) = {each.get_device() for each in tensors.values()}
        if others:
            raise InputError(f"operands are on several devices ({index}, {others[0]}): move them to one")
        library = _by_library(problem)
        gpu = self._context.gpu(index)
        if gpu is None:
            self._context.watched(None, problem, None)
            return library
        choice = self._choice(gpu, problem)
        self._context.watched(gpu, problem, choice)
        if choice.call is None:
            self._context.say(problem, f"{choice.why}: the library serves it")
            return library
        try:
            return self._launched(gpu, problem, choice, tensors, library)
        except GenkernError as error:
            self._context.say(problem, f"{error}: the library serves it")
            return library

    def _choice(self, gpu: Gpu, problem: GemmProblem) -> Choice:
        """The problem's winner; else that of the nearest M, where its kernels serve this one: many rows' product by the
        library is one of PyTorch's calls for each group.
        """
        choice = self._context.find(gpu, problem)
        if choice.call is not None or choice.exact:
            return choice
        tuned = [m for m, name in self._context.tuned(gpu, problem) if name != "vendor"]
        for m in sorted(tuned, key=lambda m: (abs(m - problem.M), -m)):
            nearest = self._context.find(gpu, replace(problem, M=m))
            winner = nearest.winner
            calls = winner.calls if winner is not None else ()
            if call := next((call for call in calls if call.least_m <= problem.M <= call.most_m), None):
                return Choice(f"tuned for M = {m}", winner, call, nearest.bundle)
        return choice

    def _launched(
        self, gpu: Gpu, problem: GemmProblem, choice: Choice, tensors: Mapping[str, Any], library: Call
    ) -> Call:
        """Launches of the winner. Raises ResultsError or LaunchError where these cannot be made for what lies so."""
        import torch

        operands = self.op.operands(problem)
        (c,) = (operand for operand in operands if operand.role == "output")
        dtype, shape = getattr(torch, DTYPES[c.dtype].torch), c.tensor_shape
        layouts = {}
        for operand in operands:
            if operand is c:
                layouts[c.name] = Layout(shape[0], shape[1], shape[1], dtype.itemsize)
                continue
            tensor = tensors[operand.name]
            layouts[operand.name] = Layout.of(tensor.shape, tensor.stride(), operand.row_major, tensor.element_size())
        prepared = PreparedCall(gpu, choice, layouts, problem.M)
        names = [operand.name for operand in operands]
        strides, failures = (shape[1], 1), list[GenkernError]()

        def call(tensors: Mapping[str, Any]) -> Any:
            if not failures:
                out = gpu.empty(shape, strides, dtype)
                addresses = tuple((out if name == c.name else tensors[name]).data_ptr() for name in names)
                try:
                    if prepared(addresses):
                        return out
                except LaunchError as error:
                    failures.append(error)
                    self._context.say(problem, f"{error}: the library serves it")
            return library(tensors)

        return call


def _by_library(problem: GemmProblem) -> Call:
    product = library_of(problem.op)
    if product is None:
        raise InputError(f"{problem.op} has no library.py, so nothing serves what is not tuned")
    return lambda tensors: product(problem, tensors)


def _require(operand: Operand, tensors: Mapping[str, Any]) -> None:
    tensor = tensors.get(operand.name)
    wanted = f"{list(operand.tensor_shape)} of {DTYPES[operand.dtype].torch}"
    if tensor is None:
        raise InputError(f"there is no {operand.name}, {wanted}")
    if tuple(tensor.shape) != operand.tensor_shape or str(tensor.dtype) != f"torch.{DTYPES[operand.dtype].torch}":
        raise InputError(f"{operand.name} is {list(tensor.shape)} of {str(tensor.dtype)[6:]}, not {wanted}")
    if operand.role in ("index", "scale") and not (tensor if operand.row_major else tensor.mT).is_contiguous():
        raise InputError(f"{operand.name} has strides {tuple(tensor.stride())}: copy it into one without gaps")


def aligned(tensor: Any) -> Any:
    """The tensor without gaps and at a multiple of 16 bytes, copied where it lies otherwise."""
    tensor = tensor.contiguous()
    return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
