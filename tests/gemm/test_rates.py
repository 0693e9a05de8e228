"""Tests of genkern.gemm.rates: one record a device, which a file may replace part of, and which refuses nonsense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from genkern.errors import InputError
from genkern.gemm.gpu_table import added
from genkern.gemm.gpus import gpu_for_arch, known_archs


def test_amds_gpus_have_rates_and_others_none() -> None:
    """The predictor counts with them on AMD's, and with its own constants on the others."""
    for gpu in map(gpu_for_arch, known_archs()):
        assert (gpu.rates is not None) == (gpu.vendor == "amd")


def test_a_file_replaces_some_of_them() -> None:
    """What it does not say stays, and so do the figures of the device."""
    text = "gfx942:\n  rates: {latency_us: 0.5}\n  devices: [{name: Mine, match: mine}]\n"
    shipped = gpu_for_arch("gfx942")
    with pytest.raises(InputError, match="Mine has no"):
        added({}, text)
    from genkern.gemm.gpu_table import read_table

    devices = {gpu.name: gpu for _, gpu in added(read_table(), text.replace("match: mine", FIGURES))["gfx942"].devices}
    assert devices["Mine"].rates == replace(shipped.rates, latency_us=0.5)  # type: ignore[type-var]
    assert devices[shipped.name].rates == shipped.rates


FIGURES = """match: mine, compute_units: 304, clock_mhz: 2100, l2_mib: 32, last_level_cache_mib: 256, memory_gb: 192,
     memory_tb_per_s: 5.3, sources: [measured]"""


@pytest.mark.parametrize(("field", "value"), [("memory_share", 1.5), ("latency_us", 0.0), ("gap_us", float("nan"))])
def test_rates_that_no_device_has_are_refused(field: str, value: float) -> None:
    """One line says which."""
    with pytest.raises(InputError, match=field):
        replace(gpu_for_arch("gfx942").rates, **{field: value})  # type: ignore[type-var]
