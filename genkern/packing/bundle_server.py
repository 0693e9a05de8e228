"""The measured process for bundles: checks and times their calls, launched as the dispatcher launches them.

    python -m genkern.packing.bundle_server --serve cudagraph

It answers like genkern.profiling.harness. Requests have two additions: "packed" holds the bundle's file and the indices
of a winner and of one of its calls; the command "row_kernel" checks a row kernel: a kernel that orders, quantises or
gates rows beside a GEMM of experts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from genkern.errors import LaunchError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.kernels.plan import LaunchPlan
from genkern.ops.op import operands_of
from genkern.profiling.checking.guard import Guarded, guarded_vector
from genkern.profiling.checking.verdict import Subject, Verdict
from genkern.profiling.harness import serve_parent
from genkern.profiling.loaded_gemm import Call, LoadedGemm
from genkern.profiling.server import Answer, Server, Tell
from genkern.result.package import PackedCall
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.bundles.table import Choice
from genkern.runtime.calls.context import Context
from genkern.runtime.launch.launcher import Launches
from genkern.runtime.launch.parameters import COUNTERS, WORKSPACE, Layout
from genkern.runtime.launch.prepared_call import LiveGpu, PreparedCall
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_calls import order_by, quantize_by
from genkern.runtime.routed.row_kernels import GATED_COLUMNS, RowKernel, needed, row_call

_DEVICE = "cuda"
# Tokens, experts per token, experts: one row, few rows, and more rows than a program reads in a step.
_ORDERED = ((1, 1, 1), (3, 2, 8), (129, 8, 64), (2048, 8, 256))
# Rows and columns: one block, an end within a block, and an end within a program's blocks.
_QUANTIZED = ((1, 128), (5, 144), (33, 720), (257, 7168))
# Rows, and columns of gate and up each.
_GATED = ((1, 48), (3, 1024), (64, 14336))


@lru_cache(maxsize=1)
def _bundle(path: str) -> Bundle:
    return read_bundle(path)


class DispatchedCall:
    """The call of a bundle's winner for one M, prepared as the dispatcher does, on given memory."""

    def __init__(self, gpu: LiveGpu, bundle: Bundle, winner: Result, call: PackedCall, m: int) -> None:
        self._gpu = gpu
        exact, sums = m == winner.problem.M, winner.order
        self._choice = Choice("packed", winner, call, bundle, exact=exact, sums=sums)
        self._m = m
        self._made: dict[object, Launches] = {}
        self.operands = tuple(operand.name for operand in operands_of(winner.problem))

    def prepared(self, layouts: Mapping[str, Layout]) -> Launches:
        """Return the launches for operands with these layouts. Raises the errors of PreparedCall."""
        key = tuple(layouts.items())
        if key not in self._made:
            self._made[key] = PreparedCall(self._gpu, self._choice, layouts, self._m).body
        return self._made[key]

    def addresses(self, tensors: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the addresses of operands, workspace and counters in the order of the launches' arguments."""
        return tuple(tensors[name].data_ptr() for name in (*self.operands, WORKSPACE, COUNTERS))


class BundleServer(Server):
    """A server that also knows calls of bundles."""

    def _answer(self, request: dict[str, Any], tell: Tell) -> Answer:
        if request["command"] == "row_kernel":
            try:
                return {"config": request["config"], **asdict(_check_rows(request))}
            except LaunchError as error:
                return self._failed(request["config"], error)
        return super()._answer(request, tell)

    def _bound(self, gemm: LoadedGemm, entry: dict[str, Any]) -> Call:
        return gemm.bound(*_dispatched(gemm, entry["packed"])) if "packed" in entry else super()._bound(gemm, entry)

    def _subject(self, gemm: LoadedGemm, request: dict[str, Any]) -> Subject:
        if "packed" not in request:
            return super()._subject(gemm, request)
        return gemm.subject_of(*_dispatched(gemm, request["packed"]))


def _dispatched(gemm: LoadedGemm, said: Mapping[str, Any]) -> tuple[DispatchedCall, LaunchPlan, dict[str, int]]:
    """Return the call, its plan, and the plan's variables. Raise LaunchError if the dispatcher would not make it."""
    bundle = _bundle(said["bundle"])
    winner = bundle.winners[said["winner"]]
    call, m = winner.calls[said["call"]], gemm.session.problem.M
    if not gemm.gpu.identity.has(winner):
        raise LaunchError(f"it won on {winner.device} with {winner.compute_units} units, not on {gemm.gpu.identity}")
    made = DispatchedCall(gemm.gpu, bundle, winner, call, m)
    try:
        made.prepared(gemm.layouts(made.operands, gemm.operands))
    except ResultsError as error:
        raise LaunchError(str(error)) from None
    return made, call.plan, {"units": gemm.units, "M": m}


class _GuardedGpu(TorchGpu):
    """A GPU whose new tensors lie between guard bands. `made` are the tensors of the current case."""

    empty_here = None

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.made: list[Guarded] = []

    def empty(self, shape: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self.made.append(guarded_vector(elements, dtype, self._device))
        return self.made[-1].tensor.as_strided(shape, strides)


def _check_rows(request: Mapping[str, Any]) -> Verdict:
    """Return whether a row kernel gives the same bits as PyTorch's functions. Raises LaunchError."""
    started_s, bundle = time.monotonic(), _bundle(request["bundle"])
    problem = bundle.winners[request["winner"]].problem
    kernel = next(each for each in needed(problem) if each.name == request["config"])
    gpu = _GuardedGpu(0)
    context = Context(lambda op: [bundle], lambda index: gpu)
    types = problem.dtype_c, problem.dtype_a
    scales = str(dict(problem.own).get("scales", "per_tensor"))
    if kernel.function == "gate_rows":
        message = _first_fault(gpu, _gated(context, problem.op, kernel, problem.dtype_c))
    elif kernel.function == "order_rows":
        message = _first_fault(gpu, _orders(context, problem.op, kernel))
    else:
        message = _first_fault(gpu, _quantized(context, problem.op, types, scales))
    passed = not message
    return Verdict(passed, message, float(not passed), float(not passed), ("exact",), time.monotonic() - started_s)


def _orders(context: Context, op: str, kernel: RowKernel) -> Iterator[tuple[str, Any, Any]]:
    """Yield cases: a description, the kernel's results, and the results of PyTorch's functions."""
    import torch

    dtype = getattr(torch, kernel.name.removeprefix("order_"))
    for tokens, top_k, experts in _ORDERED:
        # Some ids are no expert's.
        ids = torch.randint(-1, experts + 2, (tokens, top_k), dtype=dtype, device=_DEVICE)
        made = order_by(context, op, ids, experts)(ids)
        yield f"{tokens} tokens of {experts} experts", made, order_of(ids, experts)


def _quantized(context: Context, op: str, types: tuple[str, str], scales: str) -> Iterator[tuple[str, Any, Any]]:
    import torch

    wide, narrow = (getattr(torch, DTYPES[name].torch) for name in types)
    for rows, columns in _QUANTIZED:
        # Rows of very different magnitudes.
        factors = torch.logspace(-3, 3, rows, device=_DEVICE)[:, None]
        x = (torch.randn(rows, columns, device=_DEVICE) * factors).to(wide)
        made = quantize_by(context, op, 0, rows, columns, types, scales)(x)
        yield f"{rows} rows of {columns}", made, quantized(x, narrow, scales)


def _gated(context: Context, op: str, kernel: RowKernel, dtype: str) -> Iterator[tuple[str, Any, Any]]:
    import torch

    wide = getattr(torch, DTYPES[dtype].torch)
    for rows, columns in _GATED:
        # All magnitudes, with zeros and with numbers for which exp() overflows.
        factors = torch.logspace(-4, 4, 2 * columns, device=_DEVICE)
        both = (torch.randn(rows, 2 * columns, device=_DEVICE) * factors).to(wide)
        both[:, ::97] = 0
        for gate in (0, 1):
            at = gate * columns
            numbers = {"gate": at, "up": columns - at, "pitch": 2 * columns, "columns": columns}
            made = row_call(context, op, 0, kernel, (rows, -(-columns // GATED_COLUMNS)), numbers)
            parts = both.split(columns, -1)
            wanted = torch.nn.functional.silu(parts[gate]) * parts[1 - gate]
            found = wanted if made is None else made[0].empty((rows, columns), (columns, 1), wide)
            if made is not None:
                made[1]((both.data_ptr(), both.data_ptr(), found.data_ptr()))
            yield f"{rows} rows of {columns}", (found,), (wanted,)


def _first_fault(gpu: _GuardedGpu, tries: Iterable[tuple[str, Any, Any]]) -> str:
    """Return the first fault, or "". Raise LaunchError if PyTorch's functions were called in place of the kernel."""
    import torch

    for what, made, wanted in tries:
        if _DEVICE == "cuda":
            torch.cuda.synchronize()
        if not gpu.made:
            raise LaunchError("it is not launched: it cannot be loaded, or is another kernel than this genkern's")
        if not all(torch.equal(_bits(one), _bits(other)) for one, other in zip(made, wanted, strict=True)):
            return f"{what}: other bits than PyTorch's"
        if any(each.first_outside() is not None for each in gpu.made):
            return f"{what}: writes outside its output"
        gpu.made.clear()
    return ""


def _bits(x: Any) -> Any:
    import torch

    return x.contiguous().view(torch.uint8)


def main(argv: list[str]) -> None:
    """Serve requests; `argv` is `--serve` and the name of a time source."""
    _, time_source = argv
    serve_parent(time_source, BundleServer)


if __name__ == "__main__":
    main(sys.argv[1:])
