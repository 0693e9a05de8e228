"""Small modules whose layers share an input, and winners that compute on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from computing_gpu import GateKernel, Kernel, computing_gpu, planned, planned_row, with_gate
from recording_gpu import FakeGpu
from torch import nn

from genkern.gemm.problem import GemmProblem
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm

# Rows that merged weights are tuned for.
ROWS = 2


def mixes_nothing(x: torch.Tensor) -> None:
    """What pickle can name."""


class Attention(nn.Module):
    """As models have it; `mixes` is done to x between the projections."""

    def __init__(self, hidden: int = 64, heads: int = 4, kv_heads: int = 2, *, bias: bool = False) -> None:
        super().__init__()
        self.head_dim = hidden // heads
        self.q_proj = nn.Linear(hidden, hidden, bias=bias)
        self.k_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(hidden, hidden, bias=bias)
        self.mixes: Callable[[torch.Tensor], Any] = mixes_nothing

    def forward(self, x: torch.Tensor, memory: Any = None) -> torch.Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q = self.q_proj(x).view(shape)
        self.mixes(x)
        of = x if memory is None else memory
        k, v = self.k_proj(of).view(shape), self.v_proj(of).view(shape)
        repeated = q.shape[-2] // k.shape[-2]
        out: torch.Tensor = self.o_proj(
            (q * k.repeat_interleave(repeated, -2) + v.repeat_interleave(repeated, -2)).flatten(-2)
        )
        return out


class Gated(nn.Module):
    """The gated product, which is called with a matrix alone."""

    def __init__(self, hidden: int = 64, width: int = 96) -> None:
        super().__init__()
        self.down = nn.Linear(width, hidden, bias=False)
        self.gate = nn.Linear(hidden, width, bias=False)
        self.up = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, _ = x.shape
        out: torch.Tensor = self.down(nn.functional.silu(self.gate(x)) * self.up(x)).view(rows, -1)
        return out


class SideBySide(nn.Module):
    """Layers q, k and v that share an input, and what they give, side by side."""

    def __init__(self, hidden: int, *widths: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(hidden, width, bias=False) for width in widths)
        self.mixes: Callable[[torch.Tensor], Any] = mixes_nothing

    def forward(self, x: torch.Tensor, memory: Any = None) -> torch.Tensor:
        q = self.q(x)
        self.mixes(x)
        of = x if memory is None else memory
        return torch.cat((q, self.k(of), self.v(of)), -1)


def made(module: nn.Module) -> Any:
    return module.bfloat16().eval().requires_grad_(False)


def x_of(*rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((*rows, 64), generator=generator).bfloat16()


class Bench:
    """A GPU that computes, with winners for products of these N and K, and what was launched on it."""

    def __init__(self, sizes: list[tuple[int, int]], rows: tuple[int, ...] = (ROWS,), *, gate: bool = False) -> None:
        """With the kernel of gated rows too, where `gate`."""
        bundle, products = planned([planned_row(GemmProblem(m, *size)) for size in sizes for m in rows])
        kernels: dict[str, Kernel | GateKernel] = dict(products)
        if gate:
            bundle = with_gate(bundle, kernels)
        self.gpu: FakeGpu = computing_gpu(kernels)
        self.context = Context(lambda op: [bundle], lambda index: self.gpu)
        self.gemm = Gemm("a16w16", self.context)

    def launches(self) -> int:
        """How many there were since this was asked last."""
        count = len(self.gpu.driver.launched)
        self.gpu.driver.launched.clear()
        return count


@pytest.fixture
def bench() -> Bench:
    """Winners for Attention's and Gated's merged weights."""
    return Bench([(128, 64), (192, 64)])
