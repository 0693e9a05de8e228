"""Tests of genkern.runtime.calls.plain_tensor: calls of tensors whose memory does not simply hold their values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from computing_gpu import computing_gpu, planned, planned_row, with_gate
from recording_gpu import FakeGpu
from torch.nn.functional import linear
from torch.testing._internal.two_tensor import TwoTensor

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.calls.plain_tensor import is_plain, multiplies_itself
from genkern.runtime.linear import patch_model
from genkern.runtime.process.torch_ops import define

_numbers = itertools.count()
M, N, K = 8, 64, 64
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Marked(torch.Tensor):
    """A subclass that overrides nothing."""


class Weight(torch.nn.Parameter):
    """As vLLM has them: a Parameter with attributes of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)


@pytest.fixture
def gpu() -> FakeGpu:
    bundle, kernels = planned([planned_row(GemmProblem(M, N, K))])
    made = computing_gpu(kernels)
    made.bundle = bundle  # type: ignore[attr-defined]
    return made


@pytest.fixture
def gemm(gpu: FakeGpu) -> Iterator[Gemm]:
    made = Gemm("a16w16", Context(lambda op: [gpu.bundle], lambda index: gpu))  # type: ignore[attr-defined]
    made.operator = define(made, f"test_plain_{next(_numbers)}")
    with torch.no_grad():
        yield made


def small(*shape: int) -> torch.Tensor:
    return torch.randint(-3, 4, shape).bfloat16()


def nested(layout: torch.layout) -> torch.Tensor:
    """As many elements as x of a call that is known."""
    parts = [torch.ones(2, K), torch.ones(M - 2, K)]
    return torch.nested.nested_tensor(parts, layout=layout, dtype=torch.bfloat16)


# Each is as large as an x for which a winner serves calls that are known.
ODD: dict[str, Callable[[], torch.Tensor]] = {
    "negated": lambda: torch._neg_view(small(M, K)),
    "imaginary part of a conjugate": lambda: torch.complex(*torch.ones(2, M, K)).conj().imag,
    "zeros without memory": lambda: torch._efficientzerotensor(M, K, dtype=torch.bfloat16),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
    "COO": lambda: small(M, K).to_sparse(),
    "CSR": lambda: small(M, K).to_sparse_csr(),
    "subclass": lambda: small(M, K).as_subclass(Marked),
    "wrapper": lambda: TwoTensor(small(M, K), small(M, K)),
    "masked": lambda: torch.masked.masked_tensor(small(M, K).float(), torch.ones(M, K, dtype=torch.bool)),
    "float32": lambda: torch.ones(M, K),
    "float16": lambda: torch.ones(M, K).half(),
    "complex": lambda: torch.ones(M, K, dtype=torch.complex64).conj(),
    "too narrow": lambda: small(M, K // 2),
    "scalar": lambda: small(1)[0],
}


def outcome(call: Callable[[], Any]) -> Any:
    """What the call returns, as plain dense tensors, or the type and text of what it raises."""
    try:
        out = call()
    except Exception as error:
        return type(error).__name__, str(error)[:80]
    if out.is_nested:
        return type(out), [each.clone() for each in out.unbind()]
    if isinstance(out, TwoTensor):
        return type(out), [out.a, out.b]
    return type(out), out.layout, [out.to_dense() if out.layout is not torch.strided else out.as_subclass(torch.Tensor)]


def same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """Whether two outcomes are equal, tensors to so much of the largest element."""
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(((one - other).abs() <= tolerance * one.abs().max()).all())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b, tolerance) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("kind", ODD)
def test_a_patched_layer_does_what_pytorch_does(kind: str, gemm: Gemm, gpu: FakeGpu) -> None:
    """Also where a plain x of as many elements is known, for a weight of a sparse layout, and again after that."""
    layer = torch.nn.Linear(K, N, bias=False).bfloat16()
    layer.weight.copy_(small(N, K))
    x, plain = ODD[kind](), small(M, K)
    wanted, usual = outcome(lambda: layer(x)), layer(plain)
    with patch_model(layer, gemm, gemm.context):
        for _ in range(2):
            assert layer(plain).equal(usual)
            assert len(gpu.driver.launched) == 1
            assert same(outcome(lambda: layer(x)), wanted)
            gpu.driver.launched.clear()


class Mlp(torch.nn.Module):
    """As transformers has them: both layers are one product, with silu and the multiplication behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(K, K, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("kind", ODD)
@torch.no_grad()
def test_layers_of_one_product_do_what_pytorch_does(kind: str) -> None:
    """Each by itself, or together: a plain x goes through the product of both before and after."""
    model = torch.nn.Sequential(Mlp()).bfloat16().eval()
    for each in model.parameters():
        each.copy_(torch.randint(-1, 2, each.shape))
    bundle, kernels = planned([planned_row(GemmProblem(M, N, K)), planned_row(GemmProblem(M, 2 * N, K))])
    gpu = computing_gpu(kernels)
    context = Context(lambda op: [with_gate(bundle, kernels)], lambda index: gpu)
    gemm = Gemm("a16w16", context)
    gemm.operator = define(gemm, f"test_plain_{next(_numbers)}")
    x, plain = ODD[kind](), small(M, K)
    wanted, usual = outcome(lambda: model(x)), model(plain)
    with patch_model(model, gemm, context) as patch:
        assert patch.merged
        assert patch.gated
        for _ in range(2):
            assert same(model(plain), usual, 2**-6)
            assert same(outcome(lambda: model(x)), wanted, 2**-6)
    assert gpu.driver.launched


@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_a_patched_layer_with_a_sparse_weight(layout: str, gemm: Gemm) -> None:
    layer, x = torch.nn.Linear(K, N, bias=False), torch.randn(M, K)
    with patch_model(layer, gemm, Context(lambda op: [], lambda index: None, watches=[lambda *seen: None])):
        layer.weight = torch.nn.Parameter(getattr(small(N, K).float(), layout)(), requires_grad=False)
        assert torch.equal(layer(x), linear(x, layer.weight))


@pytest.mark.parametrize("kind", ["negated", "zeros without memory"])
def test_lazy_values_are_computed_before_a_kernel_reads_them(kind: str, gemm: Gemm, gpu: FakeGpu) -> None:
    """Of x and of the weight, where a plain call of the same form is known; with the gradient of what was negated."""
    x, weight = small(M, K), small(N, K)
    for _ in range(2):
        assert gemm(x, weight).equal(linear(x, weight))
        odd = ODD[kind]()
        assert gemm(odd, weight).equal(linear(odd, weight))
        if kind == "negated":
            odd = torch._neg_view(weight)
            assert gemm(x, odd).equal(linear(x, odd))
    assert gpu.driver.launched
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(gemm(torch._neg_view(leaf), weight).float().sum(), leaf)
    assert found.equal(-(torch.ones(M, N).bfloat16() @ weight))


@pytest.mark.parametrize("kind", ["nested", "jagged", "COO", "CSR", "wrapper"])
def test_a_call_of_other_tensors_is_pytorchs_function(kind: str, gemm: Gemm, gpu: FakeGpu) -> None:
    """With an activation behind it too; a format that PyTorch has no function of raises one line."""
    x, weight = ODD[kind](), small(N, K)
    x = x if kind == "wrapper" or x.is_nested else x.float()
    weight = weight.to(x.dtype)
    assert same(outcome(lambda: gemm(x, weight)), outcome(lambda: linear(x, weight)))
    assert same(
        outcome(lambda: gemm(x, weight, activation="relu")),
        outcome(lambda: torch.nn.functional.relu(linear(x, weight))),
    )
    assert not gpu.driver.launched
    if kind != "wrapper":
        with pytest.raises(InputError, match="dense"):
            gemm(x, weight, scale_a=torch.ones(1))


def test_a_program_that_negates_is_compiled(gemm: Gemm) -> None:
    x, weight = small(M, K), small(N, K)
    compiled = torch.compile(lambda x: gemm(torch._neg_view(x), weight), backend="aot_eager", fullgraph=True)
    assert compiled(x).equal(linear(-x, weight))


def test_which_tensors_are_plain() -> None:
    """Parameters with attributes of their own are ordinary matrices, which the operator multiplies."""
    assert is_plain(small(M, K))
    assert is_plain(torch.nn.Parameter(small(M, K)))
    assert not is_plain(torch.empty(M, K, device="meta"))
    assert not any(is_plain(ODD[kind]()) for kind in list(ODD)[:10])
    assert not multiplies_itself(Weight(small(M, K)))
    assert [kind for kind in ODD if multiplies_itself(ODD[kind]())] == [
        "nested",
        "jagged",
        "COO",
        "CSR",
        "wrapper",
        "masked",
    ]
