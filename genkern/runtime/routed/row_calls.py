"""Operations on rows beside a layer's products, by row kernels from a bundle or by PyTorch's functions (order.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from genkern.errors import LaunchError
from genkern.gemm.dtypes import DTYPES
from genkern.runtime.calls.context import Context
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_kernels import BLOCK, BLOCKS, ordering, quantizing, row_call

# Maps ids [tokens, top_k] to the ends of the experts' rows and the slots, like order_of.
Order = Callable[[Any], tuple[Any, Any]]
# Maps x [rows, K] to the result of `quantized`; scales of blocks are column-major.
Quantize = Callable[[Any], tuple[Any, Any]]
# Each expert's program reads all ids twice, in at most 32 steps. The limit is an estimate, not measured: PyTorch's sort
# is expected to be faster for more ids.
MOST_ORDERED = 2**15


def order_by(context: Context, op: str, ids: Any, experts: int) -> Order:
    """Return a function that orders rows by expert, for ids with the layout of `ids`."""
    rows, dtype, like = ids.numel(), ids.dtype, None
    if rows <= MOST_ORDERED and ids.is_contiguous() and (kernel := ordering(dtype)) is not None:
        like = row_call(context, op, ids.get_device(), kernel, (experts,), {"rows": rows})

    def by_torch(ids: Any) -> tuple[Any, Any]:
        return order_of(ids, experts)

    if like is None:
        return by_torch
    import torch

    gpu, launch = like
    empty, kind = gpu.empty, torch.int32
    of_ends, of_slots, strides = (experts,), (rows,), (1,)

    def by_kernel(ids: Any) -> tuple[Any, Any]:
        ends, slots = empty(of_ends, strides, kind), empty(of_slots, strides, kind)
        if launch((ids.data_ptr(), ends.data_ptr(), slots.data_ptr())):
            return ends, slots
        return order_of(ids, experts)

    return _unless_failed(by_kernel, by_torch, context, "rows in the order of their experts")


def quantize_by(
    context: Context, op: str, device: int, rows: int, k: int, types: tuple[str, str], scales: str
) -> Quantize:
    """Return a function that quantises contiguous rows [rows, k].

    `types` are the types before and after, in genkern's names.
    """
    import torch

    wide, narrow = types
    dtype = getattr(torch, DTYPES[narrow].torch)

    def by_torch(x: Any) -> tuple[Any, Any]:
        found, of_x = quantized(x, dtype, scales)
        return found, of_x.mT.contiguous().mT if scales == "blocks" else of_x

    kernel = quantizing(wide, narrow, scales)
    # The kernel assumes that rows start at multiples of 16 bytes.
    if kernel is None or k % 16:
        return by_torch
    blocks = -(-k // BLOCK)
    in_blocks = scales == "blocks"
    grid = (rows, -(-blocks // BLOCKS)) if in_blocks else (rows,)
    made = row_call(context, op, device, kernel, grid, {"rows": rows, "columns": k})
    if made is None:
        return by_torch
    gpu, launch = made
    empty, of_scales, kind = gpu.empty, (rows, blocks if in_blocks else 1), torch.float32
    # Scales of blocks are column-major.
    strides = (1, rows) if in_blocks else (1, 1)

    def by_kernel(x: Any) -> tuple[Any, Any]:
        found, of_x = empty((rows, k), (k, 1), dtype), empty(of_scales, strides, kind)
        if launch((x.data_ptr(), found.data_ptr(), of_x.data_ptr())):
            return found, of_x
        return by_torch(x)

    return _unless_failed(by_kernel, by_torch, context, kernel.name)


def _unless_failed(by_kernel: Order, by_torch: Order, context: Context, what: str) -> Order:
    """Return a function that calls the kernel until a launch fails, and then PyTorch's functions."""
    is_failed = False

    def call(x: Any) -> tuple[Any, Any]:
        nonlocal is_failed
        if not is_failed:
            try:
                return by_kernel(x)
            except LaunchError as error:
                is_failed = True
                context.say(what, f"{what}: {error}: PyTorch's calls serve it")
        return by_torch(x)

    return call
