"""What a router says, as kernels take it: rows in the order of their experts, by PyTorch's calls, without the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def order_of(ids: Any, experts: int) -> tuple[Any, Any]:
    """Where each expert's rows end [experts], and slots token * top_k + number in that order [tokens * top_k], int32.

    ids [tokens, top_k] are the experts of each token, of any integer type. A sort and a search, which may go into
    graphs.
    """
    import torch

    ordered, slots = ids.reshape(-1).sort(stable=True)
    ends = torch.searchsorted(ordered, _experts(experts, ids.device, ids.dtype), right=True, out_int32=True)
    return ends, slots.to(torch.int32)


@lru_cache(maxsize=64)
def _experts(count: int, device: Any, dtype: Any) -> Any:
    import torch

    return torch.arange(count, device=device, dtype=dtype)


def quantized(x: Any, dtype: Any, scales: str) -> tuple[Any, Any]:
    """x [rows, K] in an 8-bit type, and the scales that it was divided by, so that the largest magnitude is the type's
    largest: one [1] for all ("per_tensor"), of each row [rows, 1] ("per_token"), or of 128 elements of a row
    [rows, K / 128] ("blocks").
    """
    import torch

    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    rows, k = x.shape
    if scales == "blocks" and k % 128:
        padded = torch.nn.functional.pad(x.float(), (0, -k % 128))
        found, of_x = quantized(padded, dtype, scales)
        return found[:, :k].contiguous(), of_x
    parts = x.float().view(rows, -1, 128) if scales == "blocks" else x.float()[:, None]
    largest = parts.abs().amax() if scales == "per_tensor" else parts.abs().amax(-1, keepdim=True)
    of_x = largest.clamp(min=1e-12) / most
    found = parts / of_x
    found = found if dtype.is_floating_point else found.round()
    return found.clamp(-most, most).view(rows, k).to(dtype), of_x.reshape(1 if scales == "per_tensor" else (rows, -1))
