"""Small layers of every kind that engines have, as problems that tests have winners for."""

from __future__ import annotations

from genkern.engines.products import BATCHED, IN_BLOCKS, SCALED, WIDE
from genkern.gemm.problem import GemmProblem
from genkern.runtime.routed.functions import staged_op

# Of every layer that is served, for each of these M.
ROWS, N, K = (1, 16, 64), 256, 128
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
PER_TOKEN = (("scales", "per_token"),)
EXPERTS = ("experts", 8), ("top_k", 2)
BLOCKS = (*EXPERTS, ("scales", "blocks"))


def problems() -> list[GemmProblem]:
    """What there are winners for."""
    found = []
    for m in ROWS:
        found += [GemmProblem(m, N, K, WIDE), GemmProblem(m, N, K, WIDE, bias=True)]
        found += [GemmProblem(m, N, K, SCALED, *FP8), GemmProblem(m, N, K, SCALED, *FP8, own=PER_TOKEN)]
        found += [GemmProblem(m, N, K, IN_BLOCKS, *FP8), GemmProblem(m, N, K, BATCHED, own=(("batch_size", 3),))]
        found += [
            GemmProblem(m, 128, K, staged_op(), activation="silu", own=(*EXPERTS, ("stage", "gate_up"))),
            GemmProblem(m, K, 128, staged_op(), own=EXPERTS),
            GemmProblem(m, 128, K, staged_op(), *FP8, activation="silu", own=(*BLOCKS, ("stage", "gate_up"))),
            GemmProblem(m, K, 128, staged_op(), *FP8, own=BLOCKS),
        ]
    return found
