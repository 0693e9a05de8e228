"""Layers that share an input on a real GPU, where a row must have the same bits in every batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from layers_sharing_x import SideBySide, made
from one_order_layers import LOW, MIDDLE, SPLIT
from small_bundle import pack_here, row

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import sums_of
from genkern.result.result import Result
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.configuration import STRICT
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.linear import patch_model
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

pytestmark = pytest.mark.gpu
K, Q, KV = 1024, 1024, 256
POOL = 3000
ONE = LOW, MIDDLE


def ordered(n: int, configs: tuple[Config, ...], gpu: TorchGpu) -> list[Result]:
    here = {"device": gpu.identity.name, "compute_units": gpu.identity.compute_units}
    found = []
    for m, config in zip((4, 48, 160), configs, strict=False):
        problem = GemmProblem(m, n, K)
        sums = sums_of(problem, config, "sm_90")
        found.append(replace(row(problem, config, sums=sums, batch_invariant=True), **here))  # type: ignore[arg-type]
    return found


# What the bundle has: q's size is often that of another layer, which has an order of its own.
CASES: dict[str, Callable[[TorchGpu], list[Result]]] = {
    "together": lambda gpu: ordered(Q + 2 * KV, ONE, gpu) + ordered(Q, SPLIT, gpu),
    "either": lambda gpu: [each for n in (Q + 2 * KV, Q, KV) for each in ordered(n, ONE, gpu)],
    "apart": lambda gpu: ordered(Q + 2 * KV, SPLIT, gpu) + ordered(Q, ONE, gpu) + ordered(KV, ONE, gpu),
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_rows_have_the_same_bits(name: str, tmp_path: Path, cache_dir: Path) -> None:
    """Eager, in graphs and compiled, for any M and company: of one row, and of more than a product is shared for."""
    gpu = TorchGpu(0)
    if gpu.identity.arch != "sm_90":
        pytest.skip("the configs are of sm_90")
    bundle = read_bundle(pack_here(tmp_path, CASES[name](gpu), cache_dir))
    context = Context(lambda op: [bundle], lambda index: gpu if index >= 0 else None, batch_invariant=STRICT)
    gemm = Gemm("a16w16", context)
    gemm.operator = define(gemm, f"test_ways_gpu_{name}")
    linears = define_linears(gemm, f"test_ways_gpu_{name}_linears")
    torch.manual_seed(0)
    module: Any = made(SideBySide(K, Q, KV, KV)).cuda()
    pool, chance = torch.randn(POOL, K, device="cuda").bfloat16(), random.Random(0)
    with patch_model(module, gemm, context, lambda: linears) as patch:
        assert patch.merged == ("q + k + v",)
        wanted = module(pool)
        torch.compiler.reset()
        compiled: Any = torch.compile(module, dynamic=True, fullgraph=True)
        for m in [1, 2, 37, 1024, 1025, *(round(POOL ** chance.uniform(0, 1)) for _ in range(20))]:
            rows = torch.randperm(POOL, device="cuda")[:m]
            x = pool[rows]
            assert module(x).equal(wanted[rows]), m
            assert compiled(x).equal(wanted[rows]), m
        torch.cuda.synchronize()
        graph, x = torch.cuda.CUDAGraph(), pool[:37].clone()
        module(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            found = module(x)
        graph.replay()
        torch.cuda.synchronize()
        assert found.equal(wanted[:37])
