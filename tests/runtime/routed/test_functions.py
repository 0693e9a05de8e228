"""Tests of genkern.runtime.routed.functions: which function a format with groups has in tuned_gemm."""

from __future__ import annotations

import torch

from genkern import tuned_gemm
from genkern.runtime.routed.experts import Experts
from genkern.runtime.routed.functions import routed_of
from genkern.runtime.routed.grouped import Grouped


def test_functions_of_formats() -> None:
    """The whole of its stages where it has some; one function for the life of the process."""
    assert isinstance(tuned_gemm.gemm_grouped_gemm, Grouped)
    assert isinstance(tuned_gemm.gemm_fused_moe, Experts)
    assert routed_of("fused_moe") is tuned_gemm.gemm_fused_moe
    for name in ("gemm_grouped_gemm", "gemm_fused_moe"):
        assert getattr(tuned_gemm, name).operator is getattr(torch.ops.genkern, name).default
    assert {"gemm_grouped_gemm", "gemm_fused_moe"} <= set(dir(tuned_gemm))
