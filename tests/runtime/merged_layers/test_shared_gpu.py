"""Layers that share an input on a real GPU: eager, in CUDA graphs, compiled, and when a patch is taken off."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from layers_sharing_x import Attention, Gated, made
from small_bundle import TILED, pack_here, row

from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.launch.torch_gpu import TorchGpu
from genkern.runtime.linear import Patch, patch_model
from genkern.runtime.merged_layers.linears import define_linears
from genkern.runtime.process.torch_ops import define

pytestmark = pytest.mark.gpu
Patching = Callable[..., Patch]


@pytest.fixture(scope="module")
def patch(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Patching:
    """With a winner for the merged weight of Attention(512, 8, 2), and of Gated(512, 384)."""
    identity = TorchGpu(0).identity
    found = [
        replace(
            row(GemmProblem(m, 768, 512), TILED),
            arch=identity.arch,
            device=identity.name,
            compute_units=identity.compute_units,
        )
        for m in (1, 16)
    ]
    bundle = read_bundle(pack_here(tmp_path_factory.mktemp("shared"), found, cache_dir))
    gpu = TorchGpu(0)
    context = Context(lambda op: [bundle], lambda index: gpu if index >= 0 else None)
    gemm = Gemm("a16w16", context)
    gemm.operator = define(gemm, "test_shared_gpu")
    linears = define_linears(gemm, "test_shared_gpu_linears")
    return lambda model, **own: patch_model(model, gemm, context, lambda: linears, **own)


def model() -> Any:
    torch.manual_seed(0)
    return made(Attention(512, 8, 2)).cuda()


def x_of(rows: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn((1, rows, 512), device="cuda", generator=generator).bfloat16()


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("rows", [1, 5, 16, 100])
@torch.no_grad()
def test_values_and_memory(patch: Patching, rows: int) -> None:
    """As without a patch, in the memory that there was; tuned M and others."""
    whole, x = model(), x_of(rows)
    wanted = whole(x)
    before = torch.cuda.memory_allocated()
    with patch(whole) as patched:
        assert patched.merged == ("q_proj + k_proj + v_proj",)
        assert abs(torch.cuda.memory_allocated() - before) < 4096
        for _ in range(3):
            close(whole(x), wanted)
    close(whole(x), wanted)


@torch.no_grad()
def test_memory_goes_with_the_model(patch: Patching) -> None:
    """A patched model that moves to the CPU leaves none of it here; one that is loaded into stays where it is."""
    before = torch.cuda.memory_allocated()
    whole, x = model(), x_of(16)
    size = torch.cuda.memory_allocated() - before
    with patch(whole):
        wanted = whole(x)
        whole.cpu()
        gc.collect()
        assert torch.cuda.memory_allocated() - before < size // 4
        close(whole.cuda()(x), wanted)


@torch.no_grad()
def test_graphs_of_before_and_after(patch: Patching) -> None:
    """A graph of a patched model is right for other x, and when the patch was taken off."""
    whole, x = model(), x_of(16)
    with patch(whole):
        whole(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = whole(x)
        for seed in (1, 2):
            x.copy_(x_of(16, seed))
            graph.replay()
            close(out, whole(x_of(16, seed)))
    x.copy_(x_of(16, 3))
    graph.replay()
    close(out, whole(x_of(16, 3)))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@torch.no_grad()
def test_compiled(patch: Patching, mode: str) -> None:
    """By Inductor, with its own graphs too; a weight that is written into counts."""
    whole, x = model(), x_of(16)
    torch.compiler.reset()
    with patch(whole):
        compiled = torch.compile(whole, mode=mode)
        for seed in range(4):
            close(compiled(x_of(16, seed)).clone(), whole(x_of(16, seed)))
        whole.k_proj.weight.mul_(2)
        close(compiled(x), whole(x))


@torch.no_grad()
def test_compiled_and_captured(patch: Patching) -> None:
    """Of a compiled module a graph is right for other x, and when the patch was taken off; also of an M that genkern
    has not been called for, whose launches are made while the graph is captured.
    """
    whole, x = model(), x_of(16)
    torch.compiler.reset()
    with patch(whole):
        compiled = torch.compile(whole, dynamic=True)
        aside, current = torch.cuda.Stream(), torch.cuda.current_stream()
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for rows in (100, 5, 100, 5):
                compiled(x_of(rows))
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.compiler.set_stance("fail_on_recompile"), torch.cuda.graph(graph):
            out = compiled(x)
        for seed in (1, 2):
            x.copy_(x_of(16, seed))
            graph.replay()
            close(out, whole(x_of(16, seed)))
    x.copy_(x_of(16, 3))
    graph.replay()
    close(out, whole(x_of(16, 3)))


def test_trained(patch: Patching) -> None:
    """Gradients reach every layer."""
    whole = model().requires_grad_(True)
    with patch(whole):
        whole(x_of(16)).float().sum().backward()
    assert all(layer.weight.grad is not None for layer in (whole.q_proj, whole.k_proj, whole.v_proj))


@pytest.mark.parametrize("rows", [1, 5, 16, 100])
@torch.no_grad()
def test_gated_layers(patch: Patching, rows: int) -> None:
    """silu(gate) * up has PyTorch's bits, also of large numbers, eager and in a graph that is replayed."""
    torch.manual_seed(0)
    whole = made(Gated(512, 384)).cuda()
    whole.gate.weight *= 20
    x, other = x_of(rows)[0], x_of(rows, seed=1)[0]
    with patch(whole, gated=False) as patched:
        assert patched.gated == ()
        wanted = [whole(each) for each in (x, other)]
    with patch(whole) as patched:
        assert patched.gated == ("",)
        assert all(whole(each).equal(one) for each, one in zip((x, other), wanted, strict=True))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = whole(x)
        x.copy_(other)
        graph.replay()
        assert out.equal(wanted[1])
