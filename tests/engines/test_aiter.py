"""Tests of genkern.engines.aiter, by a stub that follows AITER's aiter/tuned_gemm.py."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from engine_winners import K, N

from genkern.engines import aiter


def torch_gemm(
    inp: Any,
    weights: Any,
    solidx: int,
    bias: Any = None,
    otype: Any = None,
    scale_a: Any = None,
    scale_b: Any = None,
    scale_c: Any = None,
    bpreshuffle: bool = False,
    config: Any = None,
) -> Any:
    """PyTorch's."""
    return torch.nn.functional.linear(inp, weights, bias)


@pytest.fixture
def tuned_gemm(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """AITER's module: a row of a table by (M, N, K), whose libtype is looked up in solMap, rows of M that is padded."""
    module = ModuleType("aiter.tuned_gemm")
    module.solMap = {"torch": torch_gemm}  # type: ignore[attr-defined]
    module.rows = {}  # type: ignore[attr-defined]

    def gemm_a16w16(
        A: Any, B: Any, bias: Any = None, otype: Any = None, scale_a: Any = None, scale_b: Any = None
    ) -> Any:
        m, k = A.shape
        padded = 1 << max(m - 1, 0).bit_length()
        config = module.rows.get((padded, B.shape[0], k), {"libtype": "torch", "solidx": 0})
        function = module.solMap[config["libtype"]]
        return function(*(A, B, config["solidx"], bias, otype or A.dtype, scale_a, scale_b, None, False), config=config)

    module.gemm_a16w16 = gemm_a16w16  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aiter", ModuleType("aiter"))
    monkeypatch.setitem(sys.modules, "aiter.tuned_gemm", module)
    return module


def test_a_row_of_genkerns_is_a_key_error_without_it_and_served_with_it(
    tuned_gemm: ModuleType, launched: Any, gpu: Any
) -> None:
    """Also for an M that AITER pads to the row's; other rows are others' as before."""
    tuned_gemm.rows[16, N, K] = {"libtype": "genkern", "solidx": 7, "kernelName": "tiled", "splitK": 0}
    x, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    with pytest.raises(KeyError):
        tuned_gemm.gemm_a16w16(x, weight)
    aiter.register()
    aiter.register()
    for rows in (16, 13):
        out = tuned_gemm.gemm_a16w16(x[:rows], weight)
        torch.testing.assert_close(out, x[:rows] @ weight.T, rtol=0.02, atol=0.05)
        assert launched() == 1
    tuned_gemm.gemm_a16w16(torch.randn(64, K).bfloat16(), weight)
    assert launched() == 0


def test_one_scale_for_all_of_fp8(tuned_gemm: ModuleType, launched: Any, gpu: Any) -> None:
    """AITER's rows with scaleAB; a scale that is not given is 1."""
    aiter.register()
    x, weight = (torch.randn(rows, K).to(torch.float8_e4m3fn) for rows in (16, N))
    out = aiter.solution(x, weight, 0, None, torch.bfloat16, torch.ones(1))
    assert (out.shape, out.dtype) == ((16, N), torch.bfloat16)


@pytest.mark.parametrize("given", [{"bpreshuffle": True}, {"scale_c": torch.ones(1)}])
def test_what_genkern_has_not_is_said(given: dict[str, Any], gpu: Any) -> None:
    """In one line that says what to do."""
    x, weight = torch.randn(16, K).bfloat16(), torch.randn(N, K).bfloat16()
    with pytest.raises(NotImplementedError, match="leave that row out"):
        aiter.solution(x, weight, 0, **given)


@pytest.mark.parametrize("wrong", ["none", "list", "arguments"])
def test_another_aiter_is_left_as_it_is(
    wrong: str, tuned_gemm: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line."""
    if wrong == "none":
        monkeypatch.setitem(sys.modules, "aiter.tuned_gemm", None)
    else:
        others = {"list": [torch_gemm], "arguments": {"torch": lambda inp, weights: inp}}
        tuned_gemm.solMap = others[wrong]  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, "genkern"):
        aiter.register()
    assert len(caplog.records) == 1
    assert "genkern" not in tuned_gemm.solMap
