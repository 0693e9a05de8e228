"""What a router says, as kernels take it: rows in the order of their experts, by PyTorch's calls, without the host."""

from __future__ import annotations

from typing import Any


def order_of(ids: Any, experts: int) -> tuple[Any, Any]:
    """Where each expert's rows end [experts], and slots token * top_k + number in that order [tokens * top_k], int32.

    ids [tokens, top_k] are the experts of each token, of any integer type; one that is no expert's counts as that of
    the nearest, so that every row has a place, and with a weight of zero adds nothing. A sort and a search, which may
    go into graphs.
    """
    import torch

    # 8 bits may not count as far as clamp() is asked to.
    flat = ids.reshape(-1) if ids.dtype.itemsize >= 4 else ids.reshape(-1).int()
    ordered, slots = flat.clamp(0, experts - 1).sort(stable=True)
    # Made anew: what is made while a graph is captured is the graph's own, and has no values before it is replayed.
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
    # Few calls, each of which is a kernel: in a layer of few tokens they take time. Nothing is beyond the largest
    # number but by a rounding, which the cast takes back.
    over = None if scales == "per_tensor" else -1
    largest = torch.linalg.vector_norm(parts, float("inf"), dim=over, keepdim=over is not None, dtype=torch.float32)
    # On a GPU PyTorch divides by a number so too, and on a CPU it does not: kernels are to give the same bits as both.
    of_x = largest.clamp_(min=1e-12).mul_(1.0 / most)
    found = parts / of_x
    found = found if dtype.is_floating_point else found.round_()
    return found.to(dtype).view(rows, k), of_x.reshape(1 if scales == "per_tensor" else (rows, -1))
