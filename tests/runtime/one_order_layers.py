"""Layers whose winners for several M add up K in one order, of each format that engines multiply by, for sm_90."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from small_bundle import row

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem, Own
from genkern.kernels.catalogue import sums_of
from genkern.result.result import Result
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped

N, K = 512, 1024
BATCH, EXPERTS, TOP_K = 3, 8, 2
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
LOW = Config("tiled", 16, 64, 64, 1, 1, 4, 3, reduce="semaphore", swapped=1)
RING_LOW = Config("warp_specialized", 16, 64, 64, 1, 1, 4, 4, swapped=1)
MIDDLE, TMA = Config("tiled", 64, 64, 64, 4, 1, 4, 3), Config("tiled_tma", 128, 128, 64, 4, 1, 8, 3)
RING = Config("warp_specialized", 128, 128, 64, 4, 1, 8, 4)
WIDE = (
    LOW.with_values(BLOCK_SIZE_K=128),
    MIDDLE.with_values(BLOCK_SIZE_K=128),
    RING.with_values(BLOCK_SIZE_K=128, num_stages=3),
)
SPLIT = (
    LOW.with_values(SPLIT_K=4),
    MIDDLE.with_values(SPLIT_K=4),
    Config("tiled", 64, 128, 64, 4, 4, 4, 3, reduce="semaphore"),
)
FEW = Config("tiled", 16, 64, 64, 1, 1, 4, 3)
SIZES = 4, 48, 160, 500, 2000

# What is multiplied of rows of the pool with these numbers: all operands at once, so that rows have the same anywhere.
Call = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class OrderedLayer:
    """`configs` win for SIZES in their order, as many as there are; `calls` makes a function of rows of `pool` many."""

    name: str
    problems: tuple[GemmProblem, ...]
    configs: tuple[Config, ...]
    calls: Callable[[Context, int, str], Call]

    def rows(self, **here: object) -> list[Result]:
        found = []
        for problem in self.problems:
            for m, config in zip(SIZES, self.configs, strict=False):
                there = replace(problem, M=m)
                sums = sums_of(there, config, "sm_90")
                found.append(replace(row(there, config, sums=sums, batch_invariant=True), **here))  # type: ignore[arg-type]
        return found


def normal(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


def plain(context: Context, pool: int, device: str) -> Call:
    gemm, x, weight = Gemm("a16w16", context), normal(pool, K, device=device), normal(N, K, device=device)
    return lambda rows: gemm(x[rows], weight)


def batched(context: Context, pool: int, device: str) -> Call:
    gemm, x = Gemm("batched_a16w16", context), normal(BATCH, pool, K, device=device)
    weight = normal(BATCH, N, K, device=device)
    return lambda rows: gemm(x[:, rows].contiguous(), weight).movedim(0, 1)


def narrow(op: str, **own: Any) -> Callable[[Context, int, str], Call]:
    def calls(context: Context, pool: int, device: str) -> Call:
        gemm, f8 = Gemm(op, context), torch.float8_e4m3fn
        x, weight = normal(pool, K, device=device, dtype=f8), normal(N, K, device=device, dtype=f8)
        blocks = "blockscale" in op
        of_x = torch.rand(pool, K // 128 if blocks else 1, device=device)
        of_weight = torch.rand((N // 128, K // 128) if blocks else (1, N), device=device)
        # Rows of bytes: not every PyTorch picks rows of fp8.
        stored = x.view(torch.uint8)
        return lambda rows: gemm(stored[rows].view(f8), weight, scale_a=of_x[rows], scale_b=of_weight, **own)

    return calls


def packed(context: Context, pool: int, device: str) -> Call:
    gemm, x = Gemm("a16w4", context), normal(pool, K, device=device)
    weight = torch.randint(0, 256, (N, K // 2), device=device).to(torch.uint8)
    scale = torch.rand(N, K // 32, device=device)
    return lambda rows: gemm(x[rows], weight, scale_b=scale)


def grouped(context: Context, pool: int, device: str) -> Call:
    gemm, x = Grouped("grouped_gemm", context), normal(pool, K, device=device)
    weight, group = normal(EXPERTS, N, K, device=device), torch.randint(0, EXPERTS, (pool,), device=device)

    def call(rows: torch.Tensor) -> torch.Tensor:
        order = group[rows].argsort(stable=True)
        ends = (group[rows][:, None] == torch.arange(EXPERTS, device=device)).sum(0).cumsum(0).int()
        made = gemm(x[rows][order], weight, ends)
        return torch.empty_like(made).index_copy_(0, order, made)

    return call


def experts(context: Context, pool: int, device: str) -> Call:
    moe, x = Experts("fused_moe", context), normal(pool, K, device=device)
    weights = normal(EXPERTS, 2 * N, K, device=device) / 32, normal(EXPERTS, K, N, device=device) / 32
    routing, ids = torch.rand(pool, EXPERTS, device=device).topk(TOP_K)
    return lambda rows: moe(x[rows], *weights, routing[rows], ids[rows])


def problem(op: str = "a16w16", *types: str, own: Own = (), **more: Any) -> GemmProblem:
    return GemmProblem(1, N, K, op, *types, own=own, **more)


MOE = ("experts", EXPERTS), ("top_k", TOP_K)
LAYERS = (
    OrderedLayer("a16w16", (problem(),), (LOW, RING_LOW, MIDDLE, TMA, RING), plain),
    OrderedLayer("a16w16 in parts", (problem(),), SPLIT, plain),
    OrderedLayer(
        "a8w8 fast",
        (problem("a8w8", *FP8, own=(("scales", "per_token"),)),),
        WIDE,
        narrow("a8w8", accumulate="fast", scales="per_token"),
    ),
    OrderedLayer(
        "a8w8 full",
        (problem("a8w8", *FP8, own=(("accumulate", "full"), ("scales", "per_token"))),),
        WIDE,
        narrow("a8w8", accumulate="full", scales="per_token"),
    ),
    OrderedLayer("a8w8_blockscale", (problem("a8w8_blockscale", *FP8),), WIDE, narrow("a8w8_blockscale")),
    OrderedLayer(
        "a16w4", (problem("a16w4", "bf16", "int8", "bf16"),), (FEW, FEW, FEW.with_values(GROUP_SIZE_M=4)), packed
    ),
    OrderedLayer("batched", (problem("batched_a16w16", own=(("batch_size", BATCH),)),), (LOW, MIDDLE), batched),
    OrderedLayer("grouped", (problem("grouped_gemm", own=(("groups", EXPERTS),)),), (MIDDLE, TMA), grouped),
    OrderedLayer(
        "fused_moe",
        (
            problem("fused_moe", activation="silu", own=(MOE[0], ("stage", "gate_up"), MOE[1])),
            GemmProblem(1, K, N, "fused_moe", own=MOE),
        ),
        (MIDDLE, TMA),
        experts,
    ),
)
