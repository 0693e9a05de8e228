"""Tests of moe_host_time.py: which layers, what contenders compute, and a whole run without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recording_gpu import FakeGpu
from small_bundle import pack_here, row
from stand_ins import cpu_place

from benchmarks.serving import moe_host_time
from benchmarks.serving.moe_host_time import (
    CTYPES,
    GROUPED_MM,
    NATIVE,
    SORTED,
    LayerCalls,
    Timed,
    layers_of,
    report,
    second_of,
)
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import Bundle, read_bundle
from genkern.runtime.calls.context import Context

SMALL = Config("tiled", 16, 64, 64, 1, 1, 4, 3)
MOE = ("experts", 8), ("top_k", 2)
FIRST = GemmProblem(16, 128, 256, "fused_moe", activation="silu", own=(*MOE, ("stage", "gate_up")))
SECOND = GemmProblem(16, 256, 128, "fused_moe", own=MOE)


@pytest.fixture(scope="module")
def bundle_file(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path) -> str:
    folder = tmp_path_factory.mktemp("moe_host_time")
    return pack_here(folder, [row(problem, SMALL) for problem in (FIRST, SECOND)], cache_dir)


@pytest.fixture(scope="module")
def bundle(bundle_file: str) -> Bundle:
    return read_bundle(bundle_file)


def test_a_layer_has_two_products(bundle: Bundle) -> None:
    """A first one whose second one has not won is none, nor is what has no stages."""
    assert second_of(FIRST) == SECOND
    assert second_of(SECOND) is second_of(GemmProblem(16, 128, 256)) is None
    assert layers_of(bundle.winners) == [FIRST]
    assert layers_of(bundle.winners[:1]) == layers_of(bundle.winners[1:]) == []


@pytest.mark.parametrize("scales", ["", "per_tensor", "per_token", "blocks"])
def test_pytorchs_way_computes_the_layer(bundle: Bundle, scales: str) -> None:
    """What the library makes of the same tensors where nothing is tuned, in 8 bits to what these cost."""
    own = (*MOE, ("scales", scales), ("stage", "gate_up")) if scales else FIRST.own
    types = ("fp8e4m3fn", "fp8e4m3fn", "bf16") if scales else ()
    problem = GemmProblem(16, 128, 256, "fused_moe", *types, activation="silu", own=own)
    place = cpu_place()
    object.__setattr__(place, "context", lambda bundles: Context(lambda op: [], lambda index: None))
    calls = LayerCalls(problem, place, bundle).contenders()
    found, wanted = calls[CTYPES]().float(), calls[GROUPED_MM]().float()
    assert (found - wanted).norm() < (2**-3.5 if scales else 2**-6) * wanted.norm()


def test_rows_are_ordered_by_the_bundles_kernel_or_by_pytorch(bundle: Bundle) -> None:
    """The bundle's kernel, or PyTorch's calls."""
    gpu = FakeGpu()
    place = cpu_place()
    object.__setattr__(place, "gpu", gpu)
    calls = LayerCalls(FIRST, place, bundle).contenders()
    for name in {NATIVE, CTYPES, SORTED} & set(calls):
        gpu.driver.launched.clear()
        assert isinstance(calls[name](), torch.Tensor)
        assert len(gpu.driver.launched) == (3 if name == SORTED else 4)


def test_the_worst_layer_is_the_figure() -> None:
    """Without the C extension there is none."""
    times, device = {NATIVE: 20.0, CTYPES: 50.0, SORTED: 40.0, GROUPED_MM: 200.0}, {NATIVE: 9.0, GROUPED_MM: 18.0}
    found = [Timed("one", times, device, 0.004), Timed("other", {**times, NATIVE: 30.0}, device, 0.004)]
    lines = report(found).splitlines()
    assert "| one | 20.0 | 50.0 | 40.0 | 200.0 | 0.10 | 9.0 | - | 18.0 | 0.004 |" in lines
    assert lines[-2:] == ["moe_host_over_grouped_mm_worst: 0.150", "moe_host_us_worst: 30.000"]
    del times[NATIVE]
    assert report([Timed("one", times, device, 0.0)]).splitlines()[-1] == "moe_host_us_worst: -"


def test_a_run_goes_on_from_what_it_has(bundle_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer has a line; what the file has is not timed again."""
    monkeypatch.setattr(moe_host_time, "MOST_CALLS", 2)
    argv = [bundle_file, "--rounds", "1", "-o", str(tmp_path / "found.jsonl")]
    text = moe_host_time.run(cpu_place(), argv)
    assert "| 16 tokens, 8 experts, top 2, hidden 256, width 128, bf16 |" in text
    monkeypatch.setattr(moe_host_time, "timed", lambda *_: pytest.fail("timed again"))
    assert moe_host_time.run(cpu_place(), argv) == text
