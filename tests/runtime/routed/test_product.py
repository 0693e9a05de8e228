"""Tests of genkern.runtime.routed.product: what serves a product's operands, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu, Launched

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.ops.op import operands_of
from genkern.packing.bundle_server import DispatchedCall
from genkern.packing.prover import Sessions
from genkern.profiling.loaded_gemm import LoadedGemm
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.calls.context import Context
from genkern.runtime.launch import launcher
from genkern.runtime.launch.cached_call import CachedBinaries
from genkern.runtime.routed.product import is_row_major_b, product_of
from genkern.timing.session import Budget

PROBLEM = GemmProblem(64, 128, 256, "grouped_gemm", own=(("groups", 4),))


def operands() -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(64, 256).bfloat16(),
        "b": torch.randn(4, 128, 256).bfloat16(),
        "ends": torch.tensor([10, 10, 40, 64], dtype=torch.int32),
    }


@pytest.mark.parametrize("native", [True, False])
def test_a_launch_that_fails_leaves_the_library(
    routed_context: Context,
    routed_gpu: FakeGpu,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    native: bool,
) -> None:
    """From then on; that is said once."""
    if not native:
        monkeypatch.setattr(launcher, "_native", None)
    caplog.set_level(logging.INFO, "genkern")
    given = operands()
    product = product_of(routed_context, PROBLEM, given)
    assert product.tuned
    routed_gpu.driver.fails = True
    for _ in range(2):
        out = product.call(*given.values())
        assert torch.equal(out[10:40], (given["a"][10:40].float() @ given["b"][2].float().T).bfloat16())
    assert len([each for each in caplog.records if "the library serves it" in each.message]) == 1


def test_operands_off_16_bytes(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """A kernel is promised aligned addresses: rows are copied to one, weights are the library's."""
    given = operands()
    call = product_of(routed_context, PROBLEM, given).call
    call(torch.randn(64 * 256 + 1).bfloat16()[1:].view(64, 256), given["b"], given["ends"])
    assert len(routed_gpu.driver.launched) == 1
    weight = torch.randn(4 * 128 * 256 + 1).bfloat16()[1:].view(4, 128, 256)
    out = call(given["a"], weight, given["ends"])
    assert len(routed_gpu.driver.launched) == 1
    assert torch.equal(out[:10], (given["a"][:10].float() @ weight[0].float().T).bfloat16())


def test_weights_are_never_copied(routed_context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """One that lies as B does is the problem of such a B, which is tuned by itself."""
    weight = operands()["b"]
    turned = weight.mT.contiguous().mT
    assert [is_row_major_b(each) for each in (weight, turned, weight[:, ::2])] == [False, True, False]
    caplog.set_level(logging.INFO, "genkern")
    assert not product_of(routed_context, PROBLEM, {**operands(), "b": turned}).tuned
    assert "the library serves it" in caplog.text


def test_what_does_not_belong_together(untuned: Context) -> None:
    """In one line that says what is wanted."""
    given = operands()
    for changed, reason in (
        ({"a": given["a"][:3]}, "a is .3, 256. of bfloat16, not .64, 256. of bfloat16"),
        ({"ends": torch.arange(4)}, "ends is .4. of int64, not .4. of int32"),
        ({"ends": None}, "ends is missing"),
    ):
        with pytest.raises(InputError, match=reason):
            product_of(untuned, PROBLEM, {**given, **changed})


def test_a_proof_launches_as_a_product_does(
    routed_context: Context, routed_bundle: Bundle, routed_gpu: FakeGpu, tmp_path: Path
) -> None:
    """With the same numbers in the same places: what is proved of a bundle is what layers call."""
    for winner in routed_bundle.winners:
        problem = winner.problem
        session = Sessions("sm_90", 0, tmp_path).of(winner, problem.M, Budget(rotating_mb=0.0))
        gemm = LoadedGemm(session, "cpu", CachedBinaries(routed_gpu, "cuda", 32))
        weight = gemm.operands["b"].mT
        product = product_of(routed_context, problem, {"b": weight})
        assert product.tuned
        stored = [gemm.operands[each.name] for each in operands_of(problem)[3:]]
        product.call(gemm.operands["a"], weight, *stored)
        called = list(map(numbers, routed_gpu.driver.launched))
        routed_gpu.driver.launched.clear()
        call = DispatchedCall(routed_gpu, routed_bundle, winner, winner.calls[0], problem.M)
        room = {"workspace": torch.empty(64), "counters": torch.empty(64)}
        addresses = call.addresses({**gemm.operands, **room})
        assert call.prepared(gemm.layouts(call.operands, gemm.operands)).launch(7, addresses)
        assert list(map(numbers, routed_gpu.driver.launched)) == called, problem.name
        routed_gpu.driver.launched.clear()


def numbers(launched: Launched) -> object:
    """All that it was launched with but addresses."""
    passed = tuple(each for each in launched.parameters if len(each) == 4)
    return launched.symbol, launched.grid, launched.threads, launched.shared_bytes, launched.cluster, passed
