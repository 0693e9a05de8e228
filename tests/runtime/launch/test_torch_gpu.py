"""Tests of genkern.runtime.launch.torch_gpu, without a GPU: a device is what results call it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small_bundle import row
from small_gemms import AMD

from genkern.gemm.gpus import gpu_named, parse_rocminfo
from genkern.gemm.problem import GemmProblem
from genkern.packing.rows import rows_of
from genkern.runtime.launch.torch_gpu import TorchGpu

ROCMINFO = """*******
Agent 2
*******
  Name:                    {arch}
  Marketing Name:          {name}
  Compute Unit:            {units}
"""


def pretended(monkeypatch: pytest.MonkeyPatch, arch: str, name: str, processors: int) -> TorchGpu:
    """A GPU of which PyTorch says this."""
    said = SimpleNamespace(gcnArchName=f"{arch}:sramecc+", name=name, multi_processor_count=processors)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: said)
    return TorchGpu(0)


@pytest.mark.parametrize(
    ("arch", "name", "units", "processors"),
    [
        ("gfx1201", "AMD Radeon RX 9070 XT", 64, 32),
        ("gfx1201", "AMD Radeon AI PRO R9700", 64, 32),
        ("gfx1100", "AMD Radeon PRO W7900", 96, 48),
        ("gfx1100", "AMD Radeon RX 7900 XTX", 96, 48),
        ("gfx942", "AMD Instinct MI300X", 304, 304),
        ("gfx90a", "AMD Instinct MI210", 104, 104),
    ],
)
def test_compute_units_are_counted_as_rocminfo_does(
    arch: str, name: str, units: int, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of RDNA, PyTorch counts work-group processors, of two units each: rows that were tuned there serve."""
    (detected,) = parse_rocminfo(ROCMINFO.format(arch=arch, name=name, units=units))
    identity = pretended(monkeypatch, arch, name, processors).identity
    assert (identity.arch, identity.name, identity.compute_units) == (arch, detected.name, detected.compute_units)
    known = gpu_named(name)
    assert known is not None
    assert known.compute_units == units
    tuned = replace(
        row(GemmProblem(100, 256, 512), AMD, "gfx942"), arch=arch, device=detected.name, compute_units=units
    )
    (packed,) = rows_of([tuned], None, False).packed
    assert identity.has(packed.winner)


@pytest.mark.parametrize("said", ["0", "false", "False"])
def test_hip_may_count_single_units(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a variable of its own."""
    monkeypatch.setenv("GPU_ENABLE_WGP_MODE", said)
    assert pretended(monkeypatch, "gfx1201", "AMD Radeon RX 9070 XT", 64).identity.compute_units == 64


def test_an_architecture_that_no_table_has_counts_as_pytorch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pretended(monkeypatch, "gfx1030", "AMD Radeon RX 6800", 30).identity.compute_units == 30
