"""Tests of genkern.runtime.routed.named_call: what serves operands by their names, and what is refused."""

from __future__ import annotations

import logging

import pytest
import torch
from recording_gpu import FakeGpu

from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.runtime.context import Context
from genkern.runtime.routed.named_call import NamedCalls, aligned

PROBLEM = GemmProblem(64, 128, 256, "grouped_gemm", own=(("groups", 4),))


def operands() -> dict[str, torch.Tensor]:
    return {
        "a": torch.randn(64, 256).bfloat16(),
        "b": torch.randn(4, 128, 256).bfloat16().mT,
        "ends": torch.tensor([10, 10, 40, 64], dtype=torch.int32),
    }


def test_a_shape_is_prepared_once(
    routed_context: Context, routed_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later calls launch what the first one found; after renew() it is looked for again."""
    calls, looked = NamedCalls("grouped_gemm", routed_context), []
    find = routed_context.find
    monkeypatch.setattr(routed_context, "find", lambda *given: looked.append(given) or find(*given))
    for _ in range(3):
        calls(PROBLEM, operands())
    assert (len(looked), len(routed_gpu.driver.launched)) == (1, 3)
    routed_context.renew()
    calls(PROBLEM, operands())
    assert len(looked) == 2


def test_a_launch_that_fails_leaves_the_library(
    routed_context: Context, routed_gpu: FakeGpu, caplog: pytest.LogCaptureFixture
) -> None:
    """From then on; that is said once."""
    caplog.set_level(logging.INFO, "genkern")
    calls, given = NamedCalls("grouped_gemm", routed_context), operands()
    routed_gpu.driver.fails = True
    for _ in range(2):
        out = calls(PROBLEM, given)
        assert torch.equal(out[10:40], (given["a"][10:40].float() @ given["b"][2].float()).bfloat16())
    assert len([each for each in caplog.records if "the library serves it" in each.message]) == 1


def test_operands_off_16_bytes_are_the_library_s(routed_context: Context, routed_gpu: FakeGpu) -> None:
    """A kernel is promised aligned addresses."""
    given = operands()
    given["a"] = torch.randn(64 * 256 + 1).bfloat16()[1:].view(64, 256)
    NamedCalls("grouped_gemm", routed_context)(PROBLEM, given)
    assert not routed_gpu.driver.launched
    assert aligned(given["a"]).data_ptr() % 16 == 0


def test_what_does_not_belong_together(untuned: Context) -> None:
    """In one line that says what is wanted."""
    calls, given = NamedCalls("grouped_gemm", untuned), operands()
    for changed, reason in (
        ({"a": given["a"][:3]}, "a is .3, 256. of bfloat16, not .64, 256. of bfloat16"),
        ({"ends": torch.arange(8, dtype=torch.int32)[::2]}, "ends has strides"),
    ):
        with pytest.raises(InputError, match=reason):
            calls(PROBLEM, {**given, **changed})
    with pytest.raises(InputError, match="there is no ends"):
        calls(PROBLEM, {name: tensor for name, tensor in given.items() if name != "ends"})
