"""Tests of genkern.runtime.process.torch_ops: a format's operator under torch.compile, export, autograd and vmap's
like.
"""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.process import torch_ops
from genkern.runtime.process.torch_ops import define

_numbers = itertools.count()


def made(op: str, bundle: Bundle | None = None, gpu: FakeGpu | None = None) -> Gemm:
    """A format with an operator of its own name."""
    gemm = Gemm(op, Context(lambda op: [bundle] if bundle else [], lambda index: gpu))
    gemm.operator = define(gemm, f"test_{op}_{next(_numbers)}")
    return gemm


@pytest.fixture(scope="module")
def gemm() -> Gemm:
    """Without a GPU: the library serves all, so that values can be compared."""
    return made("a16w16")


def test_one_graph_for_any_m(gemm: Gemm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch.compile with fullgraph and dynamic sizes compiles once, and gives what eager calls give."""
    # Dynamo sets it where nobody has.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return gemm(x, weight, activation="relu") + 1

    weight = torch.randn(24, 16)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    with torch.no_grad():
        for m in (3, 5, 17):
            x = torch.randn(m, 16)
            torch.testing.assert_close(compiled(x, weight), torch.relu(x @ weight.T) + 1)
    assert len(graphs) == 1
    assert [str(node.target) for node in graphs[0].graph.nodes if "genkern" in str(node.target)]


def test_export(gemm: Gemm) -> None:
    """A model that calls it is exported with the operator in it."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(24, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = gemm(x, self.weight)
            return out

    model, x = Model(), torch.randn(3, 16)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("m", min=2, max=64)},))
    torch.testing.assert_close(program.module()(torch.randn(7, 16)).shape, torch.Size((7, 24)))
    assert any("genkern" in str(node.target) for node in program.graph.nodes)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_are_the_librarys(gemm: Gemm, activation: str | None, with_bias: bool) -> None:
    """Of x, weight and bias, also with further dimensions."""
    x, weight = torch.randn(2, 3, 16, requires_grad=True), torch.randn(8, 16, requires_grad=True)
    bias = torch.randn(8, requires_grad=True) if with_bias else None
    inputs = [each for each in (x, weight, bias) if each is not None]
    wanted = torch.nn.functional.linear(x, weight, bias)
    wanted = wanted if activation is None else getattr(torch.nn.functional, activation)(wanted)
    out = gemm(x, weight, bias, activation=activation)
    torch.testing.assert_close(out, wanted)
    grad = torch.randn_like(out)
    for one, other in zip(
        torch.autograd.grad(out, inputs, grad), torch.autograd.grad(wanted, inputs, grad), strict=True
    ):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_second_derivatives_are_the_librarys(gemm: Gemm, activation: str | None) -> None:
    """Through the activation too."""
    given = [torch.randn(3, 16, dtype=torch.float32, requires_grad=True), torch.randn(8, 16, requires_grad=True)]
    by_gemm, of_library = gemm(*given, activation=activation), torch.nn.functional.linear(*given)
    if activation is not None:
        of_library = getattr(torch.nn.functional, activation)(of_library)
    second = []
    for out in (by_gemm, of_library):
        first = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        second.append(torch.autograd.grad(sum(each.square().sum() for each in first), given))  # type: ignore[arg-type]
    for one, other in zip(*second, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_scales_have_no_gradient() -> None:
    """And say so, in one line, only when it is asked for."""
    gemm = made("a8w8")
    x = torch.randn(4, 16).to(torch.float8_e4m3fn).requires_grad_()
    out = gemm(x, torch.randn(8, 16).to(torch.float8_e4m3fn), scale_a=torch.ones(1), scale_b=torch.ones(1))
    with pytest.raises(NotImplementedError, match=r"torch\.no_grad"):
        out.sum().backward()


def test_scales_may_want_one_alone() -> None:
    """A scale that is a parameter is not cut off from its gradient unseen."""
    gemm = made("a8w8")
    x, weight = torch.ones(4, 16, dtype=torch.int8), torch.ones(8, 16, dtype=torch.int8)
    out = gemm(x, weight, scale_a=torch.nn.Parameter(torch.ones(1)), scale_b=torch.ones(1))
    with pytest.raises(NotImplementedError, match=r"torch\.no_grad"):
        out.sum().backward()


def test_function_transforms(gemm: Gemm) -> None:
    """torch.func's grad, vmap and jvp see the library's calls, with the library's results."""
    x, weight, tangent = torch.randn(5, 3, 16), torch.randn(8, 16), torch.randn(5, 3, 16)
    wanted = torch.relu(x @ weight.T)

    def call(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = gemm(x, weight, activation="relu")
        return out

    torch.testing.assert_close(torch.func.vmap(call)(x), wanted)
    torch.testing.assert_close(torch.func.grad(lambda x: call(x).sum())(x), (wanted > 0).float() @ weight)
    torch.testing.assert_close(torch.func.jvp(call, (x,), (tangent,))[1], (tangent @ weight.T) * (wanted > 0))


@pytest.mark.filterwarnings("ignore")
def test_jit_trace(gemm: Gemm) -> None:
    """What torch.jit.trace traces has the operator in it, with weights or biases that want gradients or not."""
    x, weight = torch.randn(3, 16), torch.randn(8, 16)
    traced = torch.jit.trace(lambda x: gemm(x, weight), (x,), check_trace=False)
    assert "genkern::" in str(traced.graph)
    torch.testing.assert_close(traced(x[:2]), x[:2] @ weight.T)


def test_own_fields_reach_the_operator() -> None:
    """Block sizes of a format are arguments of its operator too."""
    gemm = made("a8w8_blockscale")
    x, weight = torch.ones(4, 64).to(torch.float8_e4m3fn), torch.ones(32, 64).to(torch.float8_e4m3fn)
    scale_a, scale_b = torch.full((4, 2), 2.0), torch.full((1, 2), 3.0)
    given = x, weight, None, torch.float32, scale_a, scale_b
    assert gemm.operator is not None
    for out in (gemm(*given, block_k=32), gemm.operator(*given, None, block_k=32)):
        assert out.eq(64 * 6).all()


def test_words_that_tensors_tell_are_open() -> None:
    """Through an operator too: one scale or a scale of each row, where nobody says which."""
    gemm = made("a8w8")
    x, weight = torch.ones(4, 16, dtype=torch.int8), torch.ones(8, 16, dtype=torch.int8)
    assert gemm.operator is not None
    for scale_a, scale_b in ((torch.ones(1), torch.ones(1)), (torch.ones(4, 1), torch.ones(1, 8))):
        out = gemm.operator(x, weight, None, torch.float32, scale_a, scale_b)
        assert torch.equal(out, gemm(x, weight, None, torch.float32, scale_a, scale_b))


def test_traced_shapes_and_types() -> None:
    """What is traced has the shape and type that a call has, for every format's default output."""
    with torch._subclasses.FakeTensorMode():
        for op, dtype, out in (("a16w16", torch.float16, torch.float16), ("a8w8", torch.int8, torch.bfloat16)):
            given = torch.empty(2, 3, 16, dtype=dtype), torch.empty(8, 16, dtype=dtype)
            found = made(op)(*given)
            assert (found.shape, found.dtype) == ((2, 3, 8), out)


def test_threads_define_one_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first calls of a program may come from several threads at once."""
    defined: list[Gemm] = []

    def slowly(gemm: Gemm) -> object:
        time.sleep(0.05)
        return defined.append(gemm)

    monkeypatch.setattr(torch_ops, "define", slowly)
    monkeypatch.setattr(torch_ops, "_made", {}, raising=False)
    monkeypatch.setattr(
        "genkern.runtime.process.default_context.default_context", lambda: Context(lambda op: [], lambda index: None)
    )
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(torch_ops.gemm_of, ["a16w16"] * 4))
    assert len(found) == len(defined) == 1


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Sees every operator that goes through PyTorch's dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_known_call_is_no_blind_one(bundle: Bundle) -> None:
    """What launched a moment ago goes by the dispatcher where a mode, a transform, a tangent or a gradient wants it."""
    gpu = FakeGpu()
    gemm = made("a16w16", bundle, gpu)
    x, weight = torch.randn(100, 512).bfloat16(), torch.randn(256, 512).bfloat16()
    for context in (torch.no_grad(), torch.inference_mode(), torch.no_grad()):
        with context:
            for _ in range(2):
                gemm(x, weight)
    with Counting() as mode:
        gemm(x, weight)
    assert any("genkern" in name for name in mode.seen)
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True):
        assert isinstance(gemm(x, weight), torch._subclasses.FakeTensor)
    gpu.driver.launched.clear()
    torch.testing.assert_close(torch.func.vmap(lambda row: gemm(row[None], weight)[0])(x), x @ weight.T)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        tangent = torch.autograd.forward_ad.unpack_dual(gemm(dual, weight)).tangent
    torch.testing.assert_close(tangent, x @ weight.T)
    assert not gpu.driver.launched
    weight.requires_grad_()
    assert gemm(x, weight).grad_fn is not None


def test_a_call_without_gradients_takes_none_from_a_later_one(bundle: Bundle) -> None:
    """Validation before training: the same parameters, once with and once without gradients."""
    gemm = made("a16w16", bundle, FakeGpu())
    x, weight = torch.randn(100, 512).bfloat16(), torch.nn.Parameter(torch.randn(256, 512).bfloat16())
    for _ in range(2):
        with torch.no_grad():
            for _ in range(2):
                assert gemm(x, weight).grad_fn is None
        assert gemm(x, weight).grad_fn is not None


def test_gradients_of_what_the_library_serves_cost_no_operator(gemm: Gemm, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's own function makes the graph; with scales the operator says that there is no gradient."""
    monkeypatch.setattr(gemm, "operator", lambda *_, **__: pytest.fail("the operator"))
    x, weight = torch.randn(3, 16), torch.nn.Parameter(torch.randn(8, 16))
    for _ in range(2):
        (of_weight,) = torch.autograd.grad(gemm(x, weight).sum(), weight)
        torch.testing.assert_close(of_weight, x.sum(0).expand(8, 16))


def test_eager_calls_go_past_the_operator(bundle: Bundle) -> None:
    """Without a gradient a call launches without PyTorch's dispatcher; with one it is the operator's."""
    gpu = FakeGpu()
    gemm = made("a16w16", bundle, gpu)
    used = []
    operator = gemm.operator
    assert operator is not None
    gemm.operator = lambda *given, **own: used.append(given) or operator(*given, **own)  # type: ignore[func-returns-value]
    x, weight = torch.randn(100, 512).bfloat16(), torch.randn(256, 512).bfloat16()
    gemm(x, weight)
    assert (len(gpu.driver.launched), len(used)) == (1, 0)
    with torch.no_grad():
        gemm(x, torch.nn.Parameter(weight))
    assert (len(gpu.driver.launched), len(used)) == (2, 0)
    gemm(x, weight.requires_grad_())
    assert (len(gpu.driver.launched), len(used)) == (3, 1)
