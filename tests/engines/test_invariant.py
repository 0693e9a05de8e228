"""Tests of genkern.engines.invariant by a stub of batch_invariant_ops' module, whose products it takes over."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from engine_winners import K, N
from torch.fx.experimental.proxy_tensor import make_fx

from genkern.engines import invariant
from genkern.engines.hooks import IncompatibleEngine
from genkern.errors import InputError
from genkern.runtime.calls.dispatch import Gemm


@pytest.fixture
def library() -> ModuleType:
    """A module as batch_invariant_ops.batch_invariant_ops is, which writes down what it multiplies itself."""
    module = ModuleType("batch_invariant_ops")
    module.calls = []  # type: ignore[attr-defined]

    def matmul_persistent(a: Any, b: Any, bias: Any = None) -> Any:
        module.calls.append(tuple(a.shape))
        return a @ b if bias is None else a @ b + bias

    def bmm_batch_invariant(a: Any, b: Any, *, out: Any = None) -> Any:
        module.calls.append(tuple(a.shape))
        return torch.bmm(a, b)

    def mm_batch_invariant(a: Any, b: Any) -> Any:
        return module.matmul_persistent(a, b)

    for function in (matmul_persistent, bmm_batch_invariant, mm_batch_invariant):
        setattr(module, function.__name__, function)
    return module


def test_products_go_to_winners_in_the_mode_of_equal_bits(
    library: ModuleType, launched: Any, mode: Any, gpu: Any
) -> None:
    """The library's mm calls what was put there: within genkern.batch_invariant(), a launch each, and bmm likewise."""
    invariant.take_over(library)
    invariant.take_over(library)
    a, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    torch.testing.assert_close(library.mm_batch_invariant(a, weight.T), a @ weight.T, rtol=0.02, atol=0.05)
    assert (launched(), mode.entered, mode.depth) == (1, 1, 0)
    left, right = torch.randn(3, 16, K).bfloat16(), torch.randn(3, N, K).bfloat16()
    out = torch.empty(3, 16, N).bfloat16()
    assert library.bmm_batch_invariant(left, right.mT, out=out) is out
    torch.testing.assert_close(out, left @ right.mT, rtol=0.02, atol=0.05)
    assert (launched(), mode.entered, mode.depth) == (1, 2, 0)
    assert library.calls == []


def test_an_empty_batch_decides_nothing(library: ModuleType, launched: Any, mode: Any, gpu: Any) -> None:
    """It is the library's; the weight's products with rows are winners' all the same, after it and before it."""
    invariant.take_over(library)
    a, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    for _ in range(2):
        assert library.matmul_persistent(a[:0], weight.T).shape == (0, N)
        library.matmul_persistent(a, weight.T)
        assert launched() == 1
    assert library.calls == [(0, K)] * 2


def test_what_no_kernel_serves_alike_is_the_librarys_for_every_m(
    library: ModuleType,
    launched: Any,
    mode: Any,
    gpu: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A weight that genkern refuses once is never its again, also one that it served before: a warning says so."""
    direct = Gemm.direct

    def refusing(self: Gemm, *given: Any) -> Any:
        if given[0].shape[0] == 1:
            raise InputError("no kernel of this class serves every M")
        return direct(self, *given)

    monkeypatch.setattr(Gemm, "direct", refusing)
    invariant.take_over(library)
    a, weight, other = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16(), torch.randn(2 * N, K).bfloat16()
    library.matmul_persistent(a[:1], other.T)
    library.matmul_persistent(a, other.T)
    assert library.calls == [(1, K), (16, K)]
    library.matmul_persistent(a, weight.T)
    with caplog.at_level("WARNING", "genkern"):
        library.matmul_persistent(a[:1], weight.T)
        library.matmul_persistent(a, weight.T)
    assert library.calls[2:] == [(1, K), (16, K)]
    assert [("serves every M" in line, "other bits" in line) for line in caplog.messages] == [(True, True)]


def test_what_ends_in_pytorchs_own_product_does_not_come_back(
    library: ModuleType, mode: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library serves a call, its mm is what was replaced: the engine's kernel computes it, once."""
    monkeypatch.setattr(Gemm, "direct", lambda self, x, weight, *more: library.mm_batch_invariant(x, weight.mT))
    invariant.take_over(library)
    a, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    torch.testing.assert_close(library.mm_batch_invariant(a, weight.T), a @ weight.T)
    assert library.calls == [(16, K)]
    assert invariant._inside.depth == 0


def test_types_that_genkern_has_not_are_the_librarys(library: ModuleType, mode: Any, gpu: Any) -> None:
    """float64, and no rows."""
    invariant.take_over(library)
    library.matmul_persistent(torch.randn(4, 8).double(), torch.randn(8, 4).double())
    library.matmul_persistent(torch.empty(0, 8).bfloat16(), torch.randn(8, 4).bfloat16())
    assert library.calls == [(4, 8), (0, 8)]
    assert mode.entered == 0


def test_tracing_sees_one_operator(library: ModuleType, mode: Any, gpu: Any) -> None:
    """A traced call is one node with symbolic rows: neither the mode nor a kernel is chosen while it is traced."""
    invariant.take_over(library)
    weight = torch.randn(N, K).bfloat16()
    graph = make_fx(lambda a, b: library.matmul_persistent(a, b.T), tracing_mode="symbolic")
    traced = graph(torch.randn(16, K).bfloat16(), weight)
    names = [node.target for node in traced.graph.nodes if "genkern" in str(node.target)]
    assert [str(name) for name in names] == ["genkern.matmul_persistent.default"]
    assert mode.entered == 0


def test_another_module_is_refused() -> None:
    """It has no such function, or one with other arguments."""
    with pytest.raises(IncompatibleEngine, match="matmul_persistent"):
        invariant.take_over(ModuleType("other"))
    module = ModuleType("other")
    module.matmul_persistent = lambda x, y: x  # type: ignore[attr-defined]
    with pytest.raises(IncompatibleEngine, match="not \\(a, b, bias\\)"):
        invariant.take_over(module)
