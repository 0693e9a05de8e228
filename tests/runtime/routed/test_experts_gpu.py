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
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped
from genkern.runtime.routed.operators import define
from genkern.runtime.routed.order import order_of, quantized
from genkern.runtime.routed.row_calls import order_by, quantize_by

pytestmark = pytest.mark.gpu

EXPERTS, TOP_K, WIDTH, HIDDEN = 8, 2, 256, 512
CONFIGS = Config("tiled", 16, 64, 64, 1, 1, 4, 3), Config("tiled_tma", 64, 64, 64, 4, 1, 4, 3)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Context]:
    """Winners for few tokens and for many, compiled for this GPU."""
    import torch

    from genkern.runtime.launch.torch_gpu import TorchGpu

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
    narrow = "fp8e4m3fn", "fp8e4m3fn", "bf16"
    for scales in ("per_token", "blocks"):
        of_first = own[0], ("scales", scales), ("stage", "gate_up"), own[1]
        first = GemmProblem(16, WIDTH, HIDDEN, "fused_moe", *narrow, activation="silu", own=of_first)
        second = GemmProblem(16, HIDDEN, WIDTH, "fused_moe", *narrow, own=(own[0], ("scales", scales), own[1]))
        rows += [(first, CONFIGS[0]), (second, CONFIGS[0])]
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


@pytest.mark.parametrize("rows", [1, 37, 1024, 5000, 2**15])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rows_are_ordered_as_pytorch_does(context: Context, rows: int, dtype: str) -> None:
    """By the bundle's kernel, to the last slot, with experts that have no row."""
    import torch

    ids = torch.randint(0, EXPERTS, (rows, 1), device="cuda").to(getattr(torch, dtype))
    ids[ids == 2] = 5
    order = order_by(context, "fused_moe", ids, EXPERTS)
    assert order.__name__ == "call"
    assert all(map(torch.equal, order(ids), order_of(ids, EXPERTS)))


@pytest.mark.parametrize("scales", ["per_token", "blocks"])
def test_rows_are_quantised_as_pytorch_does(context: Context, scales: str) -> None:
    """By the bundle's kernel. PyTorch multiplies by 1 / 448 on a GPU: a scale may differ in its last bit, and what lies
    half-way between two fp8 numbers then goes the other way. By equal scales rows are equal.
    """
    import torch

    x = torch.randn(33, 720, device="cuda").bfloat16() * torch.logspace(-4, 4, 33, device="cuda")[:, None].bfloat16()
    x[3] = 0
    quantize = quantize_by(context, "fused_moe", 0, 33, 720, ("bf16", "fp8e4m3fn"), scales)
    assert quantize.__name__ == "call"
    (found, scale), (wanted, of_torch) = quantize(x), quantized(x, torch.float8_e4m3fn, scales)
    torch.testing.assert_close(scale, of_torch, rtol=2e-7, atol=0)
    torch.testing.assert_close(found.float(), wanted.float(), rtol=2**-3, atol=2**-9)
    same = (scale == of_torch).repeat_interleave(128 if scales == "blocks" else 720, 1)[:, :720]
    assert same.float().mean() > 0.2
    assert torch.equal(found.float()[same], wanted.float()[same])


@pytest.mark.parametrize("scales", ["per_token", "blocks"])
def test_a_mixture_in_8_bits(context: Context, scales: str) -> None:
    """To what three bits of fp8 cost, by an x that is quantised beforehand too."""
    import torch

    moe, (x, gate_up, down, weights, ids) = Experts("fused_moe", context), layer(16)
    narrow, of = [], []
    for weight in (gate_up, down):
        found, scale = quantized(weight.flatten(0, 1), torch.float8_e4m3fn, "per_token")
        if scales == "blocks":
            tiles = weight.float().unflatten(1, (-1, 128)).unflatten(3, (-1, 128))
            scale = tiles.abs().amax((2, 4)) / 448
            found = (tiles / scale[:, :, None, :, None]).flatten(3).flatten(1, 2).to(torch.float8_e4m3fn)
        narrow.append(found.view(weight.shape))
        of.append(scale if scales == "blocks" else scale.view(EXPERTS, 1, -1))
    wanted = by_loop(x, gate_up, down, weights, ids)
    found = moe(x, *narrow, weights, ids, *of)
    assert (found.float() - wanted).norm() < 2**-3.5 * wanted.norm()
    # Rounded otherwise where it lies half-way (above), x moves numbers between the products over fp8's steps as well.
    x8, x_scale = quantized(x, torch.float8_e4m3fn, scales)
    assert (moe(x8, *narrow, weights, ids, *of, x_scale=x_scale) - found).norm() < 2**-5 * found.norm()


def test_a_compiled_mixture(context: Context) -> None:
    """fullgraph, for several numbers of tokens, in the graphs of mode="reduce-overhead" too."""
    import torch

    moe = Experts("fused_moe", context)
    moe.operator = define(moe, "test_moe_gpu")

    def model(x: Any, gate_up: Any, down: Any, weights: Any, ids: Any) -> Any:
        return moe(x, gate_up, down, weights, ids) + 1

    with torch.no_grad():
        for mode in ("default", "reduce-overhead"):
            compiled = torch.compile(model, fullgraph=True, mode=mode)
            for tokens in (16, 33):
                given = layer(tokens)
                for _ in range(3):
                    assert torch.equal(compiled(*given), model(*given))


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
