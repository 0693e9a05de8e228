"""Tests of genkern.runtime.routed.product: what serves a product's operands, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.runtime.context import Context
from genkern.runtime.launch import launcher
from genkern.runtime.routed.product import is_row_major_b, product_of

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
