"""A bundle of formats with rows in groups, compiled for sm_90, and a GPU that writes down what it launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording_gpu import FakeGpu
from small_bundle import pack_here, row

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.context import Context

SMALL = Config("tiled", 16, 64, 64, 1, 1, 4, 3)
TMA = Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3)
MOE = ("experts", 8), ("top_k", 2)
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
BLOCKS = (*MOE, ("scales", "blocks"))
ROWS = (
    (GemmProblem(64, 128, 256, "grouped_gemm", own=(("groups", 4),)), SMALL),
    (GemmProblem(256, 128, 256, "grouped_gemm", own=(("groups", 4),)), TMA),
    (GemmProblem(64, 128, 256, "grouped_gemm", own=(("capacity", 32), ("groups", 4))), SMALL),
    (GemmProblem(64, 128, 256, "grouped_gemm", *FP8, own=(("groups", 4), ("scales", "blocks"))), SMALL),
    (GemmProblem(16, 128, 256, "fused_moe", activation="silu", own=(*MOE, ("stage", "gate_up"))), SMALL),
    (GemmProblem(16, 256, 128, "fused_moe", own=MOE), SMALL),
    (GemmProblem(16, 128, 256, "fused_moe", *FP8, activation="silu", own=(*BLOCKS, ("stage", "gate_up"))), SMALL),
    (GemmProblem(16, 256, 128, "fused_moe", *FP8, own=BLOCKS), SMALL),
)


@pytest.fixture(scope="session")
def routed_bundle(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Bundle:
    """Winners of grouped products and of both stages of a mixture of experts."""
    folder = tmp_path_factory.mktemp("routed")
    return read_bundle(pack_here(folder, [row(problem, config) for problem, config in ROWS], cache_dir))


@pytest.fixture
def routed_gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def routed_context(routed_bundle: Bundle, routed_gpu: FakeGpu) -> Context:
    return Context(lambda op: [routed_bundle], lambda index: routed_gpu)


@pytest.fixture
def untuned() -> Context:
    """Where nothing is tuned, on a CPU."""
    return Context(lambda op: [], lambda index: None)
