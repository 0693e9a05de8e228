"""Order of rows by expert, and quantisation of rows, by PyTorch's functions that read no value on the host."""

from __future__ import annotations

from typing import Any


def order_of(ids: Any, experts: int) -> tuple[Any, Any]:
    """Return the end of each expert's rows [experts], and the slots sorted by expert [tokens * top_k], both int32.

    A slot is token * top_k + number. ids [tokens, top_k] are the experts of each token, of any integer type. An id that
    is no expert's counts as the nearest expert, so that every row has a place; its routing weight of zero makes it add
    nothing. A sort and a search, which can be captured into graphs.
    """
    import torch

    # The largest expert may not fit 8 or 16 bits, in which clamp() would have to represent it.
    flat = ids.reshape(-1) if ids.dtype.itemsize >= 4 else ids.reshape(-1).int()
    ordered, slots = flat.clamp(0, experts - 1).sort(stable=True)
    # Not cached: a tensor that is created during a graph capture has no values before the graph is replayed.
    numbers = torch.arange(experts, device=ids.device, dtype=flat.dtype)
    ends = torch.searchsorted(ordered, numbers, right=True, out_int32=True)
    return ends, slots.to(torch.int32)


def quantized(x: Any, dtype: Any, scales: str) -> tuple[Any, Any]:
    """Quantise rows to an 8-bit type, with scales that make the largest magnitude the largest number of the type.

    Args:
        x (Tensor): shape [rows, K], of a float type.
        dtype (torch.dtype): torch.int8 or a float8 type.
        scales (str): what shares a scale: "per_tensor" (all of x), "per_token" (a row) or "blocks" (128 elements of a
            row).

    Returns:
        (Tensor, Tensor): the numbers [rows, K], and float32 scales [1], [rows, 1] or [rows, K / 128].
    """
    import torch

    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    rows, k = x.shape
    if scales == "blocks" and k % 128:
        padded = torch.nn.functional.pad(x, (0, -k % 128))
        found, of_x = quantized(padded, dtype, scales)
        return found[:, :k].contiguous(), of_x
    parts = x.view(rows, -1, 128) if scales == "blocks" else x[:, None]
    # Few calls, since each is a kernel and layers with few tokens are short. A quotient can exceed the largest number
    # of the type only by rounding, which the conversion corrects.
    over = None if scales == "per_tensor" else -1
    largest = torch.linalg.vector_norm(parts, float("inf"), dim=over, keepdim=over is not None, dtype=torch.float32)
    # Multiplying by 1 / most is how PyTorch divides by a number on a GPU, but not on a CPU. Kernels must give the same
    # bits as both.
    of_x = largest.clamp_(min=1e-12).mul_(1.0 / most)
    found = parts / of_x
    found = found if dtype.is_floating_point else found.round_()
    return found.to(dtype).view(rows, k), of_x.reshape(1 if scales == "per_tensor" else (rows, -1))
