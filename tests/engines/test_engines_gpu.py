"""Tests on a GPU, without an engine: what each calls, by real binaries, is what PyTorch computes, also in graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from computing_gpu import CONFIG
from engine_winners import K, N, problems
from small_bundle import pack_here, row

from genkern.engines import aiter, experts, inductor, invariant, layers, winner_or_own
from genkern.engines.products import BATCHED, IN_BLOCKS, SCALED, WIDE, Product, operator
from genkern.gemm.gpus import detect_arch
from genkern.runtime.bundles.bundle import read_bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.process import default_context
from genkern.runtime.process.torch_ops import gemm_of
from genkern.runtime.routed.functions import routed_of, staged_op
from genkern.runtime.routed.order import order_of, quantized

pytestmark = pytest.mark.gpu
M = 16


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Context:
    """Winners compiled for this GPU."""
    from genkern.runtime.launch.torch_gpu import TorchGpu

    if detect_arch() != "sm_90":
        pytest.skip("the bundle is of sm_90")
    gpu, folder = TorchGpu(0), tmp_path_factory.mktemp("engines")
    here = {"device": gpu.identity.name, "compute_units": gpu.identity.compute_units}
    rows = [replace(row(problem, CONFIG), **here) for problem in problems() if problem.M == M]  # type: ignore[arg-type]
    bundle = read_bundle(pack_here(folder, rows, folder / "cache"))
    return Context(lambda op: [bundle], lambda index: gpu if index >= 0 else None)


@pytest.fixture(autouse=True)
def served(real: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """This process's calls find them; what is said of calls that the library serves."""
    said: list[str] = []
    monkeypatch.setattr(real, "say", lambda subject, line, *level: said.append(line))
    monkeypatch.setattr(default_context, "_made", SimpleNamespace(context=real))
    monkeypatch.setenv("GENKERN_CONFIG", "here.genkern")
    calls: list[Any] = [gemm_of(op) for op in (WIDE, SCALED, IN_BLOCKS, BATCHED)]
    for each in (*calls, routed_of(staged_op())):
        monkeypatch.setattr(each, "_context", real)
        each._renew()
    experts._found.clear()
    yield said
    assert said == []


def integers(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    """Whose products are exact in any order."""
    return torch.randint(-3, 4, shape, device="cuda").to(dtype)


def in_graph(call: Any) -> Any:
    """The result of a replay."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    graph.replay()
    return out


def test_linear_layers_in_16_bits() -> None:
    """The operator of vLLM's and SGLang's layers and of Hugging Face's, AITER's function: to the bit."""
    x, weight, bias = integers(M, K), integers(N, K), integers(N)
    wanted = (x.float() @ weight.float().T).bfloat16()
    product = operator(WIDE)
    assert Product(WIDE, weight, weight.dtype, weight.dtype).tuned() == (M,)
    assert torch.equal(product(x, weight, None), wanted)
    assert torch.equal(product(x, weight, bias), (x.float() @ weight.float().T + bias.float()).bfloat16())
    assert torch.equal(in_graph(lambda: product(x, weight, None)), wanted)
    assert torch.equal(aiter.solution(x, weight, 0), wanted)
    compiled = torch.compile(lambda x: product(x, weight, None) * 2, dynamic=True, fullgraph=True)
    assert torch.equal(compiled(x), wanted * 2)
    assert torch.equal(compiled(integers(M, K).zero_()), torch.zeros_like(wanted))


def test_linear_layers_in_fp8() -> None:
    """Scales for all, of rows and columns, and of blocks, as the engines' kernels hand them in."""
    float8 = torch.float8_e4m3fn
    x, weight = integers(M, K, dtype=float8), integers(N, K, dtype=float8)
    one, rows, columns = (torch.full((count,), 0.5, device="cuda") for count in (1, M, N))
    wanted = (x.float() @ weight.float().T * 0.25).bfloat16()
    for of_x, of_weight in ((one, one), (rows, columns)):
        given = x, weight, None, torch.bfloat16, of_x, of_weight, None
        assert torch.equal(operator(SCALED)(*given, accumulate="fast"), wanted)
    hook = winner_or_own.scaled_product(SCALED, torch.bfloat16, {"accumulate": "fast"})
    chosen = winner_or_own.served_product("fp8 layers", hook, lambda *given: None)
    assert torch.equal(in_graph(lambda: chosen([x, weight, rows.view(-1, 1), columns], N, torch.bfloat16)), wanted)
    of_x, of_weight = torch.full((K // 128, M), 0.5, device="cuda").mT, torch.full((2, 1), 0.5, device="cuda")
    call = lambda: operator(IN_BLOCKS)(x, weight, None, torch.bfloat16, of_x, of_weight)  # noqa: E731
    assert torch.equal(call(), wanted)
    assert torch.equal(in_graph(call), wanted)


def test_experts() -> None:
    """Against a product for each expert."""
    x, first, second = torch.randn(M, K, device="cuda").bfloat16(), *[None] * 2
    first, second = (torch.randn(8, *size, device="cuda").bfloat16() / 8 for size in ((256, K), (K, 128)))
    weights, ids = torch.rand(M, 2, device="cuda"), torch.randint(0, 8, (M, 2), device="cuda", dtype=torch.int32)
    found = experts.by_winners(x, first, second, weights, ids)
    wanted = torch.zeros(M, K, device="cuda")
    for token in range(M):
        for place in range(2):
            expert = int(ids[token, place])
            gate, up = (first[expert].float() @ x[token].float()).chunk(2)
            between = (torch.nn.functional.silu(gate) * up).bfloat16().float()
            wanted[token] += weights[token, place] * (second[expert].float() @ between)
    torch.testing.assert_close(found.float(), wanted, rtol=0.03, atol=0.3)
    torch.testing.assert_close(in_graph(lambda: experts.by_winners(x, first, second, weights, ids)), found)
    out = torch.empty_like(x)
    assert experts.by_winners(x, first, second, weights, ids, out=out) is out
    assert torch.equal(out, found)
    assert order_of(ids, 8)[0].shape == (8,)
    assert quantized(x, torch.float8_e4m3fn, "per_token")[0].shape == x.shape


def test_batch_invariant_products(mode: Any) -> None:
    """What takes the place of matmul_persistent and of bmm_batch_invariant."""
    module = ModuleType("batch_invariant_ops")
    module.matmul_persistent = lambda a, b, bias=None: None  # type: ignore[attr-defined]
    module.bmm_batch_invariant = lambda a, b, *, out=None: None  # type: ignore[attr-defined]
    invariant._serves.clear()
    invariant.take_over(module)
    a, weight, bias = integers(M, K), integers(N, K), integers(N)
    wanted = (a.float() @ weight.float().T + bias.float()).bfloat16()
    assert torch.equal(module.matmul_persistent(a, weight.T, bias=bias), wanted)
    left, right = integers(3, M, K), integers(3, N, K)
    assert torch.equal(module.bmm_batch_invariant(left, right.mT), (left.float() @ right.float().mT).bfloat16())


def test_inductor_calls_a_winner_on_the_gpu() -> None:
    """torch.compile(mode="max-autotune") as its users call it, with CUDA graphs."""
    x, layer = integers(M, K), torch.nn.Linear(K, N, bias=False, device="cuda", dtype=torch.bfloat16)
    layer.weight.data = integers(N, K)
    try:
        assert inductor.register()
        with torch.no_grad():
            program = torch.compile(layer, mode="max-autotune")
            for _ in range(3):
                assert torch.equal(program(x), (x.float() @ layer.weight.float().T).bfloat16())
    finally:
        inductor.unregister()
        torch._dynamo.reset()


def test_the_share_of_a_model() -> None:
    """By bytes of weights."""
    model = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False), torch.nn.Linear(N, K, bias=False)).cuda().bfloat16()

    def layer_of(module: Any) -> Any:
        if not isinstance(module, torch.nn.Linear):
            return None
        return layers.Layer.of(module, Product(WIDE, module.weight, torch.bfloat16, torch.bfloat16))

    share = layers.mark("made-up", model, layer_of)
    assert (share.layers, share.of_layers, share.bytes * 2) == (1, 2, share.of_bytes)
