"""Calls of the winners of one result, by the dispatcher that serves `genkern.tuned_gemm`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from genkern.errors import InputError, ResultsError
from genkern.gemm.gpus import NOT_PRESENT
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CONFIG_WINS
from genkern.ops.op import get_op
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.launch.prepared_call import LiveGpu


class Calls:
    """Functions that launch the winners of a bundle, which is made when the first of them is called.

    Any thread may call them.
    """

    def __init__(self, bundle: Callable[[], Bundle]) -> None:
        self._bundle = bundle
        self._lock = threading.Lock()
        self._context: Any = None
        self._functions: dict[str, Any] = {}
        # Forms of calls that were found to fit. Checking one takes some 50 us of the host.
        self._fitting: set[object] = set()

    def call(self, row: Result, arguments: Sequence[Any], named: dict[str, Any]) -> Any:
        """Compute the product of these tensors as `row` says; see `TunedKernel.__call__`."""
        form = row.problem, *map(_form, arguments), *((name, _form(value)) for name, value in named.items())
        try:
            is_known = form in self._fitting
        except TypeError:
            raise InputError("give tensors, numbers and names: one of these arguments is a list or a mapping") from None
        if not is_known:
            self._require_fit(row, arguments, named)
            self._fitting.add(form)
        return self._functions[row.problem.op](*arguments, **named)

    def _require_fit(self, row: Result, arguments: Sequence[Any], named: dict[str, Any]) -> None:
        """Raise InputError or ResultsError if the winner of `row` cannot take these arguments."""
        import torch

        tensors = [each for each in (*arguments, *named.values()) if isinstance(each, torch.Tensor)]
        if not tensors:
            raise InputError("give tensors: x [M, K] and weight [N, K]")
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            raise InputError("a winner has no gradients: call it under torch.no_grad(), or genkern.tuned_gemm instead")
        index = tensors[0].get_device()
        if (gpu := gpu_of(index)) is None:
            where = (row.device or row.arch or "the GPU that it was tuned for").removesuffix(NOT_PRESENT)
            raise InputError(f"the tensors are on the CPU: a winner runs on {where}")
        context = self._prepared(row.problem.op)
        _require_device(row, gpu)
        if get_op(row.problem.op).groups is None:
            _require_size(row.problem, arguments, named)
            choice = context.find(gpu, row.problem)
            if row.choice == CONFIG_WINS and choice.call is None:
                raise ResultsError(f"the kernel of {row.problem.size} cannot be called here: {choice.why}")

    def _prepared(self, op: str) -> Any:
        """Return the context in which the function of a format finds winners; make both if they are missing."""
        with self._lock:
            if self._context is None:
                from genkern.runtime.calls.context import Context

                bundle = self._bundle()
                self._context = Context(lambda op: [bundle], gpu_of)
            if op not in self._functions:
                self._functions[op] = _made(op, self._context)
            return self._context


def _form(value: Any) -> object:
    """Return what calls with equal forms have in common: all of an argument but a tensor's memory."""
    if not hasattr(value, "get_device"):
        return value
    return value.shape, value.stride(), value.dtype, value.get_device(), value.requires_grad


def gpu_of(index: int) -> LiveGpu | None:
    """Return the GPU with PyTorch's index; None for the CPU."""
    import torch

    from genkern.runtime.launch.torch_gpu import TorchGpu

    return TorchGpu(index) if index >= 0 and torch.cuda.is_available() else None


def _made(op: str, context: Any) -> Any:
    if get_op(op).groups is None:
        from genkern.runtime.calls.dispatch import Gemm

        return Gemm(op, context)
    from genkern.runtime.routed.experts import Experts
    from genkern.runtime.routed.functions import staged_op
    from genkern.runtime.routed.grouped import Grouped

    return Experts(op, context) if op == staged_op() else Grouped(op, context)


def _require_device(row: Result, gpu: LiveGpu) -> None:
    """Raise InputError if the row is of another device; the names of predicted devices are those of models."""
    here = gpu.identity
    same = not row.device or here.name in row.device
    if row.arch not in ("", here.arch) or (row.measured and not same):
        raise InputError(f"this winner is for {row.device or row.arch}, the tensors are on {here.name} ({here.arch})")


def _require_size(problem: GemmProblem, arguments: Sequence[Any], named: dict[str, Any]) -> None:
    """Raise InputError if the tensors are of another problem. Fields of formats are left to the dispatcher."""
    from genkern.runtime.calls.call_arguments import CallArguments

    names = "x", "weight", "bias", "out_dtype", "scale_a", "scale_b", "activation"
    values = {**dict.fromkeys(names), **dict(zip(names, arguments, strict=False)), **named}
    own = {name: value for name, value in values.items() if name not in names}
    x, weight, bias, out_dtype, scale_a, scale_b, activation = (values[name] for name in names)
    if x is None or weight is None:
        raise InputError("give x [M, K] and weight [N, K]")
    given = CallArguments.of(get_op(problem.op), x, weight, bias, out_dtype, scale_a, scale_b, activation, own)
    found = [each for each in (given.problem, *given.others) if each is not None]
    if not any(replace(each, own=()) == replace(problem, own=()) for each in found):
        what = found[0].name if found else "empty"
        raise InputError(f"these tensors are {what}, this winner is for {problem.name}: call the winner of their size")
