"""Tests of `genkern pack` and `genkern verify` on a GPU: every kernel of a bundle is proved, or found wrong."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from small_bundle import pack_here, row

from genkern.gemm.config import Config
from genkern.gemm.gpus import detect_devices
from genkern.gemm.problem import GemmProblem
from genkern.packing.verification import parse_verify, run_verify
from genkern.runtime.bundles.bundle import Bundle, read_bundle, write_bundle

pytestmark = pytest.mark.gpu
SMALL = Config("tiled", 16, 64, 64, 1, 1, 4, 3)
TMA = Config("tiled_tma", 64, 64, 64, 1, 1, 4, 3)
SPLIT = Config("tiled", 16, 64, 64, 1, 4, 4, 3)
RING = Config("warp_specialized", 64, 64, 64, 1, 1, 4, 4)
FP8 = "fp8e4m3fn", "fp8e4m3fn", "bf16"
MOE = ("experts", 8), ("top_k", 2)
BLOCKS = (*MOE, ("scales", "blocks"))
ROWS = (
    *((GemmProblem(64, 256 + 64 * n, 512), config) for n, config in enumerate((SMALL, TMA, SPLIT, RING))),
    (GemmProblem(64, 256, 512, row_major_a=False), SMALL),
    (GemmProblem(64, 256, 512, row_major_b=True), SMALL),
    (GemmProblem(48, 256, 512, "batched_a16w16", own=(("batch_size", 3),)), SMALL),
    (GemmProblem(64, 128, 256, "grouped_gemm", own=(("groups", 4),)), SMALL),
    (GemmProblem(64, 128, 256, "grouped_gemm", own=(("capacity", 32), ("groups", 4))), SMALL),
    (GemmProblem(16, 128, 256, "fused_moe", activation="silu", own=(*MOE, ("stage", "gate_up"))), SMALL),
    (GemmProblem(16, 256, 128, "fused_moe", *FP8, own=BLOCKS), SMALL),
)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> Bundle:
    """Winners of several families and formats, compiled here, without a proof."""
    here = detect_devices()[0]
    if here.arch != "sm_90":
        pytest.skip("kernels of sm_90 are packed")
    folder = tmp_path_factory.mktemp("unproved")
    rows = [replace(row(problem, config), device=here.name) for problem, config in ROWS]
    return read_bundle(pack_here(folder, rows, cache_dir))


def verified(bundle: Bundle, path: Path, *more: str) -> tuple[int, str, Bundle]:
    write_bundle(str(path), bundle.contents, {name: bundle.image(name) for name in bundle.contents.binaries})
    console = Console(file=StringIO(), width=500)
    status = run_verify(parse_verify([str(path), "--cache_dir", str(path.parent / "cache"), *more]), console)
    return status, console.file.getvalue(), read_bundle(str(path))  # type: ignore[attr-defined]


def test_every_kernel_is_proved(bundle: Bundle, tmp_path: Path) -> None:
    """Of all kinds of calls, and kernels beside products; but for the largest M where the GPU has no room for them."""
    before, of = bundle.contents.proofs
    assert before < of
    status, said, after = verified(bundle, tmp_path / "b.genkern", "--only_proofs")
    too_large = said.count("its operands do not fit here")
    assert (status, after.contents.proofs) == (int(too_large > 0), (of - too_large, of)), said
    assert said.count("not proved") == too_large <= 2, said
    assert after.contents.proved_rows == bundle.contents.row_kernels.keys() != set()


def test_kernels_without_their_masks_are_found(bundle: Bundle, tmp_path: Path) -> None:
    """As if masks had been left out of what serves other M: none of these stays, and the winners do."""
    winners = []
    for winner in bundle.winners[:2]:
        own, *masked = winner.calls
        assert masked
        bare = [replace(own, least_m=call.least_m, most_m=call.most_m) for call in masked]
        winners.append(winner.with_calls((own, *bare)))
    faulty = replace(bundle, contents=replace(bundle.contents, winners=tuple(winners), row_kernels={}))
    status, said, after = verified(faulty, tmp_path / "b.genkern", "--only_proofs")
    assert status == 1
    assert said.count("left out: ") == sum(len(winner.calls) - 1 for winner in winners)
    assert [(winner.choice, len(winner.calls)) for winner in after.winners] == [("config", 1)] * 2


def test_winners_are_timed_beside_the_library(bundle: Bundle, tmp_path: Path) -> None:
    """Each has times of this machine, and is called by them."""
    few = replace(bundle, contents=replace(bundle.contents, winners=bundle.winners[:3], row_kernels={}))
    status, said, after = verified(few, tmp_path / "b.genkern", "--only_times")
    assert "timed: 3 winners" in said
    for winner in after.winners:
        assert winner.duration_us != 10.0
        assert winner.vendor_us is not None
        assert "cublaslt" in dict(winner.versions)
        assert (winner.choice == "config") == (
            winner.duration_us is not None and winner.duration_us < 1.05 * winner.vendor_us
        )
    assert status == int(any(winner.choice != "config" for winner in after.winners))
