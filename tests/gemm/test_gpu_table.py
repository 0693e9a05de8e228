"""Tests of genkern.gemm.gpu_table: entries that add to the table, and what is wrong with others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from genkern.errors import InputError
from genkern.gemm.gpu import Gpu
from genkern.gemm.gpu_table import ENVIRONMENT, added, read_table
from genkern.gemm.gpus import gpu_for_arch

DEVICE = {
    "name": "NVIDIA Other",
    "match": "other",
    "compute_units": 10,
    "clock_mhz": 1000,
    "l2_mib": 1,
    "last_level_cache_mib": 2,
    "memory_gb": 16,
    "memory_tb_per_s": 0.5,
    "sources": ["a data sheet"],
}


def with_entries(entries: object) -> dict[str, list[Gpu]]:
    """The devices of the shipped table and of these entries, by architecture."""
    return {
        arch: [gpu for _, gpu in each.devices] for arch, each in added(read_table(), yaml.safe_dump(entries)).items()
    }


def device(**own: Any) -> dict[str, Any]:
    return {**DEVICE, **own}


def test_a_device_of_a_known_architecture() -> None:
    """It takes what it does not say, and differs where it does; the default stays, and so do the others."""
    devices = with_entries({"sm_90": {"devices": [device(has={"cluster_programs_max": 1}, warp_size=32)]}})["sm_90"]
    shipped = [gpu for _, gpu in read_table()["sm_90"].devices]
    *others, own = devices
    assert others == shipped
    assert (own.compute_units, own.shared_bytes_per_block) == (10, shipped[0].shared_bytes_per_block)
    assert own.has.cluster_programs_max == 1
    assert own.has.wgmma
    assert own.peak_tflops["fp16"] == pytest.approx(10 * 1000 * 4096 * 1e-6)
    assert own.sources == (*shipped[0].sources[:1], "a data sheet")


def test_a_device_of_the_same_name_takes_its_place() -> None:
    """For figures of one's own, such as a lower clock; it stays the default."""
    own = device(name="NVIDIA H200", match="h200")
    devices = with_entries({"sm_90": {"devices": [own]}})["sm_90"]
    assert [gpu.compute_units for gpu in devices if gpu.name == "NVIDIA H200"] == [10]
    assert devices[0].name == gpu_for_arch("sm_90").name == "NVIDIA H200"


def test_an_architecture_like_another() -> None:
    """Its devices alone, with the other's figures and capabilities where it has none of its own."""
    entry = {"like": "sm_100", "has": {"cluster_programs_max": 4}, "devices": [device()]}
    (own,) = with_entries({"sm_103": entry})["sm_103"]
    b200 = gpu_for_arch("sm_100")
    assert (own.arch, own.like, own.name) == ("sm_103", "sm_100", "NVIDIA Other")
    assert own.has.tcgen05
    assert (own.has.cluster_programs_max, own.registers_per_unit) == (4, b200.registers_per_unit)


def whole() -> dict[str, Any]:
    """An entry that says everything itself."""
    shipped = dict(read_table()["gfx1201"].common)
    return {**shipped, "sources": list(shipped["sources"]), "devices": [device(name="AMD Other")]}


def test_an_architecture_like_none() -> None:
    """It says every figure."""
    (own,) = with_entries({"gfx1250": whole()})["gfx1250"]
    assert (own.vendor, own.like, own.warp_size) == ("amd", "", 32)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([1], "a mapping of architectures"),
        ({}, "a mapping of architectures"),
        ({"H100": {}}, "'H100' is not an architecture such as"),
        ({"sm_103": [1]}, "sm_103: the entry is not a mapping"),
        ({"sm_103": {"like": "sm_100"}}, "sm_103: devices is not a list"),
        ({"sm_103": {"like": "sm_99", "devices": [DEVICE]}}, "'sm_99' is not one of the architectures before it"),
        ({"sm_103": {"like": ["sm_100"], "devices": [DEVICE]}}, "not one of the architectures before it"),
        ({"sm_90": {"devices": [device(memory_gb=float("inf"))]}}, "memory_gb = inf is not a valid figure"),
        ({"sm_90": {"devices": [device(flops_per_clock={"fp16": 1, 4: 1})]}}, "4 is not one of fp16"),
        ({"sm_90": {"like": "sm_100", "devices": [DEVICE]}}, "not known yet"),
        ({"sm_103": {"devices": [DEVICE]}}, "sm_103: NVIDIA Other has no blocks_per_unit_max"),
        ({"sm_90": {"devices": [device(colour="green")]}}, "no key 'colour'"),
        ({"sm_90": {"devices": [device(has={"wings": True})]}}, "no key 'wings': use some of async_copies, tma"),
        ({"sm_90": {"devices": [device(has={"tma": 1})]}}, "tma = '1' is not of type bool"),
        ({"sm_90": {"devices": [device(has={"fp8_sum_bits": True})]}}, "fp8_sum_bits = 'True' is not of type int"),
        ({"sm_90": {"devices": [device(has=["tma"])]}}, "has is not a mapping"),
        ({"sm_90": {"devices": [device(compute_units="many")]}}, "compute_units = 'many' is not of type int"),
        ({"sm_90": {"devices": [device(compute_units=-1)]}}, "compute_units = -1 is not a valid figure"),
        ({"sm_90": {"devices": [device(match=[])]}}, "match = '\\[\\]' has no words"),
        ({"sm_90": {"devices": [device(sources="x")]}}, "sources is not a list"),
        ({"sm_90": {"devices": [device(flops_per_clock={"fp16": "fast"})]}}, "not a positive number"),
        ({"sm_90": {"devices": [device(flops_per_clock={"fp16": True})]}}, "not a positive number"),
        ({"sm_90": {"devices": [device(flops_per_clock={"fp16": float("inf")})]}}, "not a positive number"),
        ({"sm_90": {"devices": [device(flops_per_clock={"fp16": 10**400})]}}, "not a positive number"),
        ({"sm_90": {"devices": [device(compute_units=10**400)]}}, "compute_units = 10+ is not a valid figure"),
        ({"sm_90": {"devices": [device(name="H100\nH200")]}}, "name = .* is not a line of text"),
        ({"sm_90": {"devices": [device(has={"kpack_max": 0})]}}, "kpack_max = 0 is below 1"),
        ({"sm_90": {"devices": [device(has={"scalar_registers_per_simd": -1})]}}, "= -1 is below 0"),
        ({"sm_90": {"devices": [device(shared_bytes_per_block=10**7)]}}, "more shared memory than a unit"),
        ({"sm_90": {"devices": [device(threads_per_block_max=4096)]}}, "more threads than a unit"),
        ({"sm_90": {"devices": [device(l2_mib=3)]}}, "smaller than L2"),
        ({"sm_90": {"devices": [device(vendor="amd")]}}, "the vendor of sm_90 is nvidia"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(entries: object, message: str) -> None:
    """Which architecture, which key, and what is right."""
    with pytest.raises(InputError, match=message) as caught:
        with_entries(entries)
    assert "\n" not in str(caught.value)


def test_text_that_is_no_yaml() -> None:
    """One line of what the parser says."""
    with pytest.raises(InputError, match="not valid YAML"):
        added({}, "a: [")


def test_files_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several, the later ones on top; the name of one that is wrong or missing is told."""
    one, two = tmp_path / "one.yaml", tmp_path / "two.yaml"
    one.write_text(yaml.safe_dump({"sm_103": {"like": "sm_100", "devices": [DEVICE]}}))
    two.write_text(yaml.safe_dump({"sm_104": {"like": "sm_103", "devices": [DEVICE]}}))
    monkeypatch.setenv(ENVIRONMENT, os.pathsep.join([str(one), str(two)]))
    assert {"sm_103", "sm_104"} < set(read_table())
    monkeypatch.setenv(ENVIRONMENT, str(two))
    with pytest.raises(InputError, match=r"two\.yaml: sm_104: like = 'sm_103'"):
        read_table()
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "three.yaml"))
    with pytest.raises(InputError, match=r"cannot read .*three\.yaml"):
        read_table()
