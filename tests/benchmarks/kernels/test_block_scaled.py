"""block_scaled.py without a GPU: vLLM's files, which of their configs a size has, and what is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from peer_files import VLLM as VLLM_FILE
from peer_files import VLLM_NAME

from benchmarks.kernels.block_scaled import BEST, DEEP_GEMM, VLLM, Race, config_for, report, shipped_in
from genkern.errors import InputError
from genkern.gemm.problem import GemmProblem
from genkern.timing.libraries import VENDOR

FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"


def block_scaled(m: int, n: int = 1536, k: int = 7168, **changes: object) -> GemmProblem:
    return GemmProblem(m, n, k, "a8w8_blockscale", *FP8, **changes)  # type: ignore[arg-type]


def test_a_size_has_the_config_of_the_nearest_m(tmp_path: Path) -> None:
    """As vLLM chooses; none for another N and K, other scales or other types."""
    (tmp_path / VLLM_NAME).write_text(VLLM_FILE)
    (tmp_path / "other.json").write_text("[]")
    shipped = shipped_in(str(tmp_path))
    names = {m: config.name for m in (1, 10, 40, 8192) if (config := config_for(block_scaled(m), shipped))}
    assert names == {
        1: "tiled_BM64_BN32_BK128_GM64_SK1_nW4_nS5",
        10: "tiled_BM64_BN32_BK128_GM64_SK1_nW4_nS5",
        40: "tiled_BM64_BN32_BK128_GM16_SK1_nW4_nS4",
        8192: "tiled_BM64_BN128_BK128_GM16_SK1_nW4_nS3",
    }
    for other in (block_scaled(1, n=2112), block_scaled(1, own=(("block_n", 64),)), block_scaled(1, bias=True)):
        assert config_for(other, shipped) is None


def test_a_folder_without_their_files_is_refused(tmp_path: Path) -> None:
    """Before anything is timed."""
    with pytest.raises(InputError, match="vLLM"):
        shipped_in(str(tmp_path))


def test_report() -> None:
    """The better peer over the winner, whichever of the library's calls is better; vLLM's configs apart."""
    races = [
        Race("1x2x3", "best", {"best": 10.0, VENDOR: 15.0, BEST: 12.0, DEEP_GEMM: 20.0, VLLM: 13.0}),
        Race("4x5x6", "other", {"other": 10.0, DEEP_GEMM: 9.0}),
        Race("7x8x9", "alone", {"alone": 10.0}),
        Race("7x8x9", "wrong", {VENDOR: 10.0}),
    ]
    text = report(races)
    assert "| 1x2x3 | 10.00 | 15.00 | 12.00 | 20.00 | 13.00 | 1.200 | 1.300 | best |" in text
    assert "| 4x5x6 | 10.00 |  |  | 9.00 |  | 0.900 |  | other |" in text
    assert "| 7x8x9 | 10.00 |  |  |  |  |  |  | alone |" in text
    assert "blockscale_over_best_peer: 1.039 (least 0.900, 2 of them)\nblockscale_least: 0.900\n" in text
    assert text.endswith("blockscale_over_vllm_configs: 1.300 (least 1.300, 1 of them)")
    assert ": " not in report([])
