"""Tune one size, and call its winner.

    python examples/tune_one_size.py

Measures on the GPU of this machine. Without one, the time is predicted for an H100, and nothing is called.
"""

from __future__ import annotations

import torch

import genkern

M, N, K = 16, 4096, 4096


def main() -> None:
    has_gpu = torch.cuda.is_available()
    result = genkern.tune(M=M, N=N, K=K, dtype=torch.bfloat16, device=None if has_gpu else "NVIDIA H100")
    print(result)
    winner = result.winners[0]
    print("time:", winner.time_us, "us,", "predicted" if winner.predicted else "measured")
    if not has_gpu:
        print("no GPU: the winner is not called")
        return
    x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(N, K, device="cuda", dtype=torch.bfloat16)
    y = winner(x, weight)
    print("largest difference from torch:", (y - torch.nn.functional.linear(x, weight)).abs().max().item())


if __name__ == "__main__":
    main()
