"""Tests on a GPU: whole mixtures of experts and grouped products by their winners' binaries, also in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from small_bundle import pack_here, row

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_arch
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundle import read_bundle
from genkern.runtime.context import Context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped

pytestmark = pytest.mark.gpu

EXPERTS, TOP_K, WIDTH, HIDDEN = 8, 2, 256, 512
CONFIGS = Config("tiled", 16, 64, 64, 1, 1, 4, 3), Config("tiled_tma", 64, 64, 64, 4, 1, 4, 3)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """Winners for few tokens and for many, compiled for this GPU."""
    import torch

    from genkern.runtime.launch.gpu import TorchGpu

    if detect_arch() != "sm_90":
        pytest.skip("the bundle is of sm_90")
    own = ("experts", EXPERTS), ("top_k", TOP_K)
    gate_up = own[0], ("stage", "gate_up"), own[1]
    rows = []
    for tokens, config in zip((16, 256), CONFIGS, strict=True):
        rows.append((GemmProblem(tokens, WIDTH, HIDDEN, "fused_moe", activation="silu", own=gate_up), config))
        rows.append((GemmProblem(tokens, HIDDEN, WIDTH, "fused_moe", own=own), config))
        rows.append((GemmProblem(tokens, WIDTH, HIDDEN, "grouped_gemm", own=(("groups", EXPERTS),)), config))
        masked = ("capacity", 64), ("groups", EXPERTS)
        rows.append((GemmProblem(tokens, WIDTH, HIDDEN, "grouped_gemm", own=masked), config))
    properties = torch.cuda.get_device_properties(0)
    here = {"device": properties.name, "compute_units": properties.multi_processor_count}
    folder = tmp_path_factory.mktemp("experts")
    made = [replace(row(problem, config), **here) for problem, config in rows]  # type: ignore[arg-type]
    bundle, gpu = read_bundle(pack_here(folder, made, folder / "cache")), TorchGpu(0)
    said: list[str] = []
    made_context = Context(lambda op: [bundle], lambda index: gpu)
    made_context.say = lambda subject, line: said.append(line)  # type: ignore[method-assign]
    yield made_context
    # Nothing was left to the library.
    assert said == []


def layer(tokens: int) -> tuple[Any, ...]:
    """x, gate_up, down, routing weights and ids."""
    import torch

    torch.manual_seed(tokens)
    return (
        torch.randn(tokens, HIDDEN, device="cuda").bfloat16(),
        (torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, device="cuda") / HIDDEN**0.5).bfloat16(),
        (torch.randn(EXPERTS, HIDDEN, WIDTH, device="cuda") / WIDTH**0.5).bfloat16(),
        torch.rand(tokens, TOP_K, device="cuda").softmax(-1),
        torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K).indices,
    )


def by_loop(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> Any:
    """Expert after expert, in float32."""
    import torch

    out = torch.zeros_like(x, dtype=torch.float32)
    for expert in range(EXPERTS):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        both = x[tokens].float() @ gate_up[expert].float().T
        rows = torch.nn.functional.silu(both[:, :WIDTH]) * both[:, WIDTH:]
        out.index_add_(0, tokens, rows @ down[expert].float().T * weights[tokens, slots, None])
    return out


@pytest.mark.parametrize("tokens", [1, 16, 33, 256, 1000])
def test_a_mixture_is_that_of_a_loop(context: Context, tokens: int) -> None:
    """For tuned numbers of tokens and others, eager and in a graph that is replayed with other routing."""
    import torch

    moe, given = Experts("fused_moe", context), layer(tokens)
    wanted = by_loop(*given)
    assert (moe(*given).float() - wanted).norm() < 2**-6 * wanted.norm()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = moe(*given)
    given[4].copy_(torch.rand(tokens, EXPERTS, device="cuda").topk(TOP_K).indices)
    graph.replay()
    wanted = by_loop(*given)
    assert (out.float() - wanted).norm() < 2**-6 * wanted.norm()
    again = [moe(*given) for _ in range(3)]
    assert all(torch.equal(each, out) for each in again)


@pytest.mark.parametrize("masked", [False, True])
def test_groups_are_those_of_a_loop(context: Context, masked: bool) -> None:
    """Contiguous and masked, with groups of no rows."""
    import torch

    gemm, weight = Grouped("grouped_gemm", context), layer(1)[1][:, :WIDTH].contiguous()
    counts = torch.tensor([0, 64, 1, 30, 0, 0, 17, 5], dtype=torch.int32, device="cuda")
    rows = counts if masked else counts.cumsum(0).int()
    shape = (EXPERTS, 64, HIDDEN) if masked else (int(counts.sum()), HIDDEN)
    x = torch.randn(shape, device="cuda").bfloat16()
    out = gemm(x, weight, rows, **({"expected_m": 16} if masked else {}))
    start = 0
    for group, count in enumerate(counts.tolist()):
        mine = (group, slice(0, count)) if masked else slice(start, start + count)
        start += count
        wanted = x[mine].float() @ weight[group].float().T
        assert (out[mine].float() - wanted).norm() <= 2**-7 * wanted.norm()
