"""Tests of genkern.gemm.gpu: what a GPU has, and figures and capabilities that no device has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from genkern.errors import InputError
from genkern.gemm.gpu import Capabilities, arch_vendor
from genkern.gemm.gpus import gpu_for_arch, known_archs

B200 = gpu_for_arch("sm_100")


@pytest.mark.parametrize(
    ("capability", "archs"),
    [
        ("tma", {"sm_90", "sm_100", "sm_120"}),
        ("dependent_launches", {"sm_90", "sm_100", "sm_120"}),
        ("wgmma", {"sm_90"}),
        ("tcgen05", {"sm_100"}),
        ("of_warpgroups", {"sm_90", "sm_100"}),
        ("tf32", {"gfx942", *(arch for arch in known_archs() if arch_vendor(arch) == "nvidia")}),
    ],
)
def test_gpus_have_the_instructions_of_their_vendors_manuals(capability: str, archs: set[str]) -> None:
    """As the vendors' instruction sets say."""
    assert {arch for arch in known_archs() if getattr(gpu_for_arch(arch).has, capability)} == archs


def test_what_is_not_said_is_not_there() -> None:
    """A GPU of which nothing is said has no instruction of its own, and sums of all bits."""
    nothing = Capabilities()
    assert not any(value for value in vars(nothing).values() if isinstance(value, bool))
    assert (nothing.cluster_programs_max, nothing.fp8_sum_bits, nothing.tensor_memory_columns) == (1, 24, 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"fp8": "e4m3"}, "not one of ocp, fnuz"),
        ({"wgmma": True, "tcgen05": True}, "different architectures"),
        ({"wgmma": True, "matrix_warps": 4}, "need tma"),
        ({"wgmma": True, "tma": True}, "need tma, and matrix_warps above 1"),
        ({"tensor_memory_columns": 512}, "belong together"),
        ({"fp8_sum_bits": 25}, "not from 2 to the 24"),
        ({"fp8_sum_bits": 0}, "not from 2 to the 24"),
        ({"cluster_programs_max": 0}, "below 1"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], message: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=message) as caught:
        Capabilities(**values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vendor": "amd"}, "the vendor of sm_100 is nvidia"),
        ({"compute_units": 0}, "compute_units = 0 is not a valid figure"),
        ({"memory_gb": -1.0}, "memory_gb = -1.0 is not a valid figure"),
        ({"xcds": 5}, "not the same number in each of 5 XCDs"),
        ({"peak_tflops": {"fp16": 1.0, "fp4": 2.0}}, "fp4 is not one of fp16"),
        ({"peak_tflops": {"bf16": 1.0}}, "has no fp16"),
    ],
)
def test_figures_of_no_device_are_refused(values: dict[str, Any], message: str) -> None:
    """In one line."""
    with pytest.raises(InputError, match=message):
        replace(B200, **values)


def test_amds_gpus_have_rates_and_others_none() -> None:
    """The predictor counts with them on AMD's, and with its own constants on the others."""
    for gpu in map(gpu_for_arch, known_archs()):
        assert (gpu.rates is not None) == (gpu.vendor == "amd")


@pytest.mark.parametrize(("field", "value"), [("memory_share", 1.5), ("latency_us", 0.0), ("gap_us", float("nan"))])
def test_rates_that_no_device_has_are_refused(field: str, value: float) -> None:
    """One line says which."""
    rates = gpu_for_arch("gfx942").rates
    assert rates is not None
    with pytest.raises(InputError, match=f"rates: {field}"):
        replace(rates, **{field: value})
