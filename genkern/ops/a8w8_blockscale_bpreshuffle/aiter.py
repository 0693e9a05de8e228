"""AITER's functions for this format: CK's kernels in AITER's own weight layout, which need column-major scales of A.

Sources: aiter/ops/gemm_op_a8w8.py, and op_tests/test_gemm_a8w8_blockscale.py for the layout of the scales.
"""

from __future__ import annotations

from typing import Any

from genkern.gemm.problem import GemmProblem
from genkern.ops.a8w8_blockscale.aiter import has_usual_blocks
from genkern.ops.aiter_calls import AiterCall, calls_of

_FUNCTIONS = {
    "aiter ck": ("gemm_a8w8_blockscale_bpreshuffle_ck", "module_gemm_a8w8_blockscale_bpreshuffle"),
    "aiter cktile": ("gemm_a8w8_blockscale_bpreshuffle_cktile", "module_gemm_a8w8_blockscale_bpreshuffle_cktile"),
}


def calls(aiter: Any, problem: GemmProblem) -> dict[str, AiterCall]:
    """Return AITER's calls by their names in results.

    genkern's column-major scales of A are passed without a copy, as a tensor of shape [M, K / 128].
    """
    if problem.bias or not has_usual_blocks(problem) or dict(problem.own).get("layout", "n16k16") != "n16k16":
        return {}
    return calls_of(aiter, problem, _FUNCTIONS, lambda of: (_turned(of["scale_a"]), of["scale_b"], of["c"]))


def _turned(scales: Any) -> Any:
    return scales.mT.reshape(scales.shape)
