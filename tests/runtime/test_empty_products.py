"""Tests of products without elements, of every format: results and gradients beside PyTorch's own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from layout_cases import TYPES, operands, problem_of
from torch.nn.functional import linear

from genkern.runtime.calls.context import Context
from genkern.runtime.calls.dispatch import Gemm
from genkern.runtime.process import torch_ops
from genkern.runtime.routed import operators
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.grouped import Grouped

_numbers = itertools.count()
SIZES = list(itertools.product((0, 3), (0, 5), (0, 16)))


def made(op: str, kind: Any = Gemm) -> Any:
    calls = kind(op, Context(lambda op: [], lambda index: None))
    module = torch_ops if kind is Gemm else operators
    calls.operator = module.define(calls, f"test_empty_{op}_{next(_numbers)}")
    return calls


@pytest.fixture(scope="module")
def gemm() -> Gemm:
    found: Gemm = made("a16w16")
    return found


def differentiated(call: Callable[..., Any], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The result of leaves like these, and the gradient of each; then the second derivatives."""
    leaves = [each.detach().requires_grad_() for each in given]
    out = call(*leaves)
    first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(each.square().sum() for each in first), leaves, materialize_grads=True)  # type: ignore[arg-type]
    return [out, *first, *second]


def require_same(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.requires_grad == other.requires_grad
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_are_those_of_linear(gemm: Gemm, activation: str | None, with_bias: bool) -> None:
    """Also second derivatives: data parallel ranks wait for each other's gradients, of batches without rows too."""
    for m, n, k in SIZES:
        given = [torch.randn(2, m, k), torch.randn(n, k), *([torch.randn(n)] if with_bias else [])]

        def wanted(*given: torch.Tensor) -> torch.Tensor:
            c = linear(*given)
            return c if activation is None else getattr(torch.nn.functional, activation)(c)  # type: ignore[no-any-return]

        # The second call is one that is known.
        for _ in range(2):
            found = differentiated(lambda *given: gemm(*given, activation=activation), given)
            require_same(found, differentiated(wanted, given))


def test_gradients_of_batches() -> None:
    call = made("batched_a16w16")
    for batch, (m, n, k) in itertools.product((0, 2), SIZES):
        given = torch.randn(batch, m, k), torch.randn(batch, n, k)
        require_same(differentiated(call, given), differentiated(lambda x, w: torch.bmm(x, w.mT), given))


def test_gradients_of_two_types(gemm: Gemm) -> None:
    """For which PyTorch has no function: fp16 by bf16, and C in float32."""
    for m, n, k in SIZES:
        for type_a, out in ((torch.float16, None), (torch.bfloat16, torch.float32)):
            x = torch.randn(m, k, dtype=type_a, requires_grad=True)
            weight = torch.randn(n, k, dtype=torch.bfloat16, requires_grad=True)
            found = gemm(x, weight, out_dtype=out)
            assert (found.shape, found.dtype) == ((m, n), out or type_a)
            gradients = torch.autograd.grad(found.sum(), (x, weight))
            assert [(each.shape, each.dtype) for each in gradients] == [
                (x.shape, x.dtype),
                (weight.shape, weight.dtype),
            ]


@pytest.mark.parametrize("op", TYPES)
def test_no_elements_or_zeros(op: str) -> None:
    """Of every format, with its scales, in its type."""
    problem = problem_of(op, True, False)
    x, weight, scales = operands(problem)
    call = made(op)
    cases = {"M": (x[..., :0, :], weight), "N": (x, weight[..., :0, :]), "K": (x[..., :0], weight[..., :0])}
    for x, weight in cases.values():
        out = call(x, weight, **scales)
        assert out.shape == (*x.shape[:-1], weight.shape[-2])
        assert out.dtype == (torch.float16 if op == "a16w8" else torch.bfloat16)
        assert not out.any()


def test_transforms_autocast_and_compilation(gemm: Gemm) -> None:
    """As torch.nn.functional.linear, for x of no rows and for K of 0."""
    for m, k in ((0, 16), (3, 0)):
        given = torch.randn(5, m, k), torch.randn(8, k)
        require_same(transformed(gemm, *given), transformed(linear, *given))


def transformed(call: Callable[..., Any], x: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        cast = call(x, weight)
    mapped = torch.func.vmap(lambda row: call(row, weight))(x)
    jvp = torch.func.jvp(lambda x: call(x, weight), (x,), (x,))
    gradient = torch.func.grad(lambda weight: call(x, weight).sum())(weight)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)(x, weight.clone().requires_grad_())
    return [cast, mapped, *jvp, gradient, compiled]


def by_groups(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    starts = [0, *ends.tolist()[:-1]]
    return torch.cat([x[a:b] @ each.mT for a, b, each in zip(starts, ends.tolist(), weight, strict=True)])


def test_groups_without_rows() -> None:
    call = made("grouped_gemm", Grouped)
    for ends, (n, k) in itertools.product(([0, 0, 0], [0, 4, 4], [2, 2, 4]), ((8, 16), (0, 16), (8, 0))):
        leaves = [
            torch.randn(ends[-1], k).bfloat16().requires_grad_(),
            torch.randn(3, n, k).bfloat16().requires_grad_(),
        ]
        rows = torch.tensor(ends, dtype=torch.int32)
        found, wanted = call(*leaves, rows), by_groups(leaves[0], leaves[1], rows)
        assert found.requires_grad
        pairs = [(found, wanted)]
        pairs += zip(*(torch.autograd.grad(out.float().sum(), leaves) for out in (found, wanted)), strict=True)
        for one, other in pairs:
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("tokens", [0, 4])
def test_experts_without_tokens(tokens: int) -> None:
    """The weights of an expert that no token goes to have a gradient of zeros."""
    call = made("fused_moe", Experts)
    shapes = (tokens, 16), (4, 16, 16), (4, 16, 8)
    leaves = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    routing, ids = torch.rand(tokens, 1, requires_grad=True), torch.ones(tokens, 1, dtype=torch.int64)
    out = call(*leaves, routing, ids)
    gradients = torch.autograd.grad(out.float().sum(), (*leaves, routing))
    assert [each.shape for each in gradients] == [each.shape for each in (*leaves, routing)]
    used = gradients[1].any(-1).any(-1).tolist()
    assert used == [False, tokens > 0, False, False]
