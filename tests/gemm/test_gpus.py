"""Tests of genkern.gemm.gpus: the table against the vendors' printed figures, look-up, and detection."""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from machines import known_gpus

from genkern.errors import InputError
from genkern.gemm import gpus
from genkern.gemm.gpu import WARPGROUP_SHARED_BYTES
from genkern.gemm.gpus import (
    DetectedDevice,
    Gpu,
    detect_devices,
    gpu_for_arch,
    gpu_for_device,
    gpu_named,
    known_archs,
    parse_nvidia_smi,
    parse_rocminfo,
    partition_of,
    read_kfd,
    triton_target,
)

every_gpu = pytest.mark.parametrize("gpu", known_gpus(), ids=lambda gpu: gpu.name)

# Dense peaks as the data sheets print them (half of the sparse figure where only that is printed).
PRINTED_TFLOPS = {
    "AMD Instinct MI250X": {"fp16": 191.5, "fp32": 47.9},
    "AMD Instinct MI210": {"fp16": 181.0},
    "AMD Instinct MI300X": {"fp16": 1307.4, "fp8": 2614.9, "int8": 2614.9, "fp32": 163.4},
    "AMD Instinct MI300A": {"fp16": 980.6, "fp8": 1961.2},
    "AMD Instinct MI350X": {"fp16": 2306.9, "fp8": 4613.7},
    "AMD Instinct MI355X": {"fp16": 2516.6, "fp8": 5033.2, "fp32": 157.3},
    "AMD Radeon RX 7900 XTX": {"fp16": 122.8},
    "AMD Radeon RX 9070 XT": {"fp16": 195, "fp8": 389},
    "NVIDIA A100 80GB": {"fp16": 312, "fp32": 156, "int8": 624},
    "NVIDIA A10": {"fp16": 125, "int8": 250, "fp32": 62.5},
    "NVIDIA RTX A6000": {"fp16": 154.8},
    "NVIDIA GeForce RTX 3090": {"fp16": 71, "int8": 284},
    "NVIDIA L40S": {"fp16": 362.05, "fp8": 733, "fp32": 183},
    "NVIDIA L4": {"fp16": 121, "fp8": 242.5},
    "NVIDIA GeForce RTX 4090": {"fp16": 165.2, "fp8": 330.3, "int8": 660.6},
    "NVIDIA H100": {"fp16": 989.5, "fp8": 1979, "int8": 1979, "fp32": 494.7},
    "NVIDIA H200": {"fp16": 989.5, "fp8": 1979, "int8": 1979, "fp32": 494.7},
    "NVIDIA H100 PCIe": {"fp16": 756.5, "fp8": 1513},
    "NVIDIA B200": {"fp16": 2250, "fp8": 4500, "fp32": 1125},
    "NVIDIA GB200": {"fp16": 2500, "fp8": 5000},
    "NVIDIA GeForce RTX 5090": {"fp16": 209.5, "fp8": 419, "int8": 838},
    "NVIDIA RTX PRO 6000 Blackwell": {"fp16": 503.8, "fp8": 1007.6},
}


@pytest.mark.parametrize("name", PRINTED_TFLOPS)
def test_peaks_are_the_printed_ones(name: str) -> None:
    """Units x clock x flops per clock gives the figure in the data sheet, to 1.3 %."""
    gpu = next(gpu for gpu in known_gpus() if gpu.name == name)
    for dtype, printed in PRINTED_TFLOPS[name].items():
        assert printed == pytest.approx(gpu.peak_tflops[dtype], rel=0.013)


@every_gpu
def test_every_entry_is_plausible(gpu: Gpu) -> None:
    """Each entry names its sources, has positive figures, and limits that do not contradict each other."""
    assert gpu.sources
    assert not any("://" in source for source in gpu.sources)
    numbers = [value for value in dataclasses.asdict(gpu).values() if isinstance(value, (int, float))]
    assert min(numbers) >= 0
    assert gpu.shared_bytes_per_block + gpu.shared_reserved_bytes <= gpu.shared_bytes_per_unit
    assert gpu.threads_per_block_max <= gpu.threads_per_unit_max
    assert gpu.threads_per_unit_max % (gpu.warp_size * gpu.simds_per_unit) == 0
    assert gpu.last_level_cache_mib >= gpu.l2_mib
    assert {"fp16", "bf16", "int8", "fp32"} <= set(gpu.peak_tflops)
    assert gpu.compute_units % gpu.xcds == 0
    # One wave of the largest register need must fit into its SIMD.
    assert gpu.registers_per_thread_max * gpu.warp_size <= gpu.registers_per_unit // gpu.simds_per_unit


@every_gpu
def test_what_plans_choose_by_is_what_gpus_of_warpgroups_have(gpu: Gpu) -> None:
    """A plan knows no GPU, so those of kernels with wgmma or tcgen05 count on one figure, which all such GPUs have."""
    if gpu.has.of_warpgroups:
        assert gpu.shared_bytes_per_block == WARPGROUP_SHARED_BYTES


@every_gpu
def test_records_travel_between_processes(gpu: Gpu) -> None:
    """A Gpu can be hashed, and pickled to a worker and back."""
    assert gpu == pickle.loads(pickle.dumps(gpu))
    assert hash(gpu) == hash(pickle.loads(pickle.dumps(gpu)))


def test_names_are_unique() -> None:
    """No two devices share a name."""
    names = [gpu.name for gpu in known_gpus()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("gfx942", "AMD Instinct MI300X"),
        ("sm_90", "NVIDIA H200"),
        ("sm_80", "NVIDIA A100 80GB"),
        ("sm_100", "NVIDIA B200"),
        ("gfx942:sramecc+:xnack-", "AMD Instinct MI300X"),
        (" GFX950 ", "AMD Instinct MI355X"),
    ],
)
def test_arch_has_a_default(arch: str, name: str) -> None:
    """An arch stands for one device; feature suffixes and letter case do not matter."""
    assert name == gpu_for_arch(arch).name


@pytest.mark.parametrize(
    ("arch", "near"),
    [
        *(("sm90", "sm_90"), ("gfx943", "gfx942"), ("gfx1200", "gfx1201")),
        *(("MI300X", "gfx942"), ("NVIDIA H100 80GB HBM3", "sm_90"), ("a100", "sm_80"), ("RTX 4090", "sm_89")),
    ],
)
def test_unknown_arch_suggests_the_nearest(arch: str, near: str) -> None:
    """An unknown arch is an InputError that names the nearest known one, or a product's, and lists all."""
    with pytest.raises(InputError, match=f"did you mean {near}\\?") as caught:
        gpu_for_arch(arch)
    assert all(known in str(caught.value) for known in known_archs())


@pytest.mark.parametrize(
    ("device_name", "arch", "name"),
    [
        ("NVIDIA H200", "sm_90", "NVIDIA H200"),
        ("NVIDIA H100 80GB HBM3", "sm_90", "NVIDIA H100"),
        ("NVIDIA H100 PCIe", "sm_90", "NVIDIA H100 PCIe"),
        ("NVIDIA GH200 480GB", "sm_90", "NVIDIA GH200"),
        ("NVIDIA A100-SXM4-40GB", "sm_80", "NVIDIA A100 40GB"),
        ("NVIDIA A100-SXM4-80GB", "sm_80", "NVIDIA A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "sm_80", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA L4", "sm_89", "NVIDIA L4"),
        ("AMD Instinct MI300X", "gfx942", "AMD Instinct MI300X"),
        ("AMD Instinct MI325X OAM", "gfx942:sramecc+:xnack-", "AMD Instinct MI325X"),
        ("AMD Radeon AI PRO R9700", "gfx1201", "AMD Radeon AI PRO R9700"),
        ("NVIDIA Something New", "sm_90", "NVIDIA H200"),
        ("AMD Instinct MI300X", "sm_90", "NVIDIA H200"),
        ("", "gfx942", "AMD Instinct MI300X"),
    ],
)
def test_device_names_of_drivers_are_matched(device_name: str, arch: str, name: str) -> None:
    """A driver's device name finds its entry within the arch; an unknown one finds the default."""
    assert name == gpu_for_device(device_name, arch).name


@pytest.mark.parametrize(
    ("arch", "target"),
    [
        ("gfx942", ("hip", "gfx942", 64)),
        ("gfx1201", ("hip", "gfx1201", 32)),
        ("sm_90", ("cuda", 90, 32)),
        ("sm_120", ("cuda", 120, 32)),
    ],
)
def test_triton_target(arch: str, target: tuple[str, str | int, int]) -> None:
    """The target is what Triton's GPUTarget takes: a number on NVIDIA, waves of 32 on RDNA."""
    assert target == triton_target(gpu_for_arch(arch))


def test_nvidia_smi_is_read() -> None:
    """Index, name and compute capability come from the CSV; warnings between the lines are passed over."""
    text = (
        "0, NVIDIA H200, 9.0\nWARNING: infoROM is corrupted at gpu 0000:01:00.0\n1, NVIDIA RTX 5090, 12.0, GPU-7f-01\n"
    )
    assert parse_nvidia_smi(text) == [
        DetectedDevice(0, "NVIDIA H200", "sm_90"),
        DetectedDevice(1, "NVIDIA RTX 5090", "sm_120", uuid="GPU-7f-01"),
    ]


def test_nvidia_smi_tells_driver_and_clocks() -> None:
    """As numbers in MHz; what a device does not tell is unknown, not an error."""
    text = (
        "0, NVIDIA H200, 9.0, GPU-1, 570.86.15, 1980, 3201\n"
        "1, NVIDIA GB10, 12.1, GPU-2, 580.95.05, 3003, [N/A]\n2, Old, 8.0, GPU-3, [Unknown Error], [N/A], [N/A]\n"
    )
    assert [(d.driver, d.sm_clock_max_mhz, d.memory_clock_max_mhz) for d in parse_nvidia_smi(text)] == [
        ("570.86.15", 1980, 3201),
        ("580.95.05", 3003, None),
        ("", None, None),
    ]


@pytest.mark.parametrize(
    ("shown", "names"),
    [
        (None, ["a", "b", "c"]),
        ("2", ["c"]),
        ("2, 0", ["c", "a"]),
        ("GPU-bb,0", ["b", "a"]),
        ("1,7,0", ["b"]),
        ("-1", []),
        ("", []),
        ("GPU-", ["a"]),
        ("MIG-1234", ["a"]),
        ("GPU-zz", []),
    ],
)
def test_hidden_gpus_are_not_there(
    shown: str | None, names: list[str], fake_tools: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch system's CUDA_VISIBLE_DEVICES: no GPU of somebody else is found, and numbers count what is visible."""
    fake_tools("nvidia-smi", "for i, n in enumerate('abc'): print(f'{i}, {n}, 9.0, GPU-{n * 2}-01')")
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    assert [(device.index, device.name) for device in detect_devices()] == list(enumerate(names))


ROCMINFO = """ROCk module version 6.16.6 is loaded
=====================
HSA Agents
=====================
*******
Agent 1
*******
  Name:                    AMD EPYC 9654 96-Core Processor
  Marketing Name:          AMD EPYC 9654 96-Core Processor
  Device Type:             CPU
*******
Agent 2
*******
  Name:                    gfx942
  Uuid:                    GPU-1234
  Marketing Name:          AMD Instinct MI300X
  Device Type:             GPU
  Compute Unit:            304
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx942:sramecc+:xnack-
*******
Agent 3
*******
  Name:                    gfx90a
  Marketing Name:
  Device Type:             GPU
*** Done ***
"""


def test_rocminfo_is_read() -> None:
    """GPU agents are counted from 0 in order, CPUs left out; a blank marketing name stays blank."""
    assert [
        DetectedDevice(0, "AMD Instinct MI300X", "gfx942", 304),
        DetectedDevice(1, "", "gfx90a"),
    ] == parse_rocminfo(ROCMINFO)


def test_kfd_topology_is_read(tmp_path: Path) -> None:
    """gfx_target_version is decimal major, minor, step, and hexadecimal in the arch; 0 is a CPU; order is numeric."""
    versions = {"0": "0", "1": "90402", "2": "90010", "10": "120001", "11": "90500", "12": "110000"}
    for node, version in versions.items():
        (tmp_path / node).mkdir()
        (tmp_path / node / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {version}\n")
    (tmp_path / "13").mkdir()
    with open(tmp_path / "1" / "properties", "a") as properties:
        properties.write("simd_count 1216\nsimd_per_cu 4\n")
    assert [device.arch for device in read_kfd(tmp_path)] == ["gfx942", "gfx90a", "gfx1201", "gfx950", "gfx1100"]
    assert [device.compute_units for device in read_kfd(tmp_path)] == [304, 0, 0, 0, 0]
    assert read_kfd(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("name", "units", "xcds"),
    [
        ("mi300x", 304, 8),
        ("mi300x", 152, 4),
        ("mi300x", 76, 2),
        ("mi300x", 38, 1),
        ("mi300a", 76, 2),
        ("mi355x", 32, 1),
    ],
)
def test_a_partition_is_some_xcds_of_the_device(name: str, units: int, xcds: int) -> None:
    """In SPX, DPX, QPX and CPX mode a device has as many XCDs as its compute units make; its peak is their share."""
    whole = gpu_for_device(name, "gfx950" if name == "mi355x" else "gfx942")
    part = partition_of(whole, units)
    assert (part.compute_units, part.xcds) == (units, xcds)
    assert part.peak_tflops["bf16"] == pytest.approx(whole.peak_tflops["bf16"] * units / whole.compute_units)
    assert (part.memory_tb_per_s, part.name) == (whole.memory_tb_per_s, whole.name)


@pytest.mark.parametrize(
    ("arch", "units"), [("gfx942", 0), ("gfx942", 80), ("gfx942", 608), ("sm_90", 66), ("gfx90a", 55)]
)
def test_what_is_no_partition_is_the_device(arch: str, units: int) -> None:
    """Other numbers of units (unknown, masked, another product) leave the table's device as it is."""
    assert partition_of(gpu_for_arch(arch), units) == gpu_for_arch(arch)


@pytest.fixture
def fake_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """A machine with no GPU tools but those that a test writes, each a Python program."""
    folder = tmp_path / "with 'quotes' and spaces"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "no rocm"))
    monkeypatch.setattr(gpus, "_KFD", tmp_path / "no kfd")

    def write(name: str, program: str) -> None:
        path = folder / name
        path.write_text(f"#!{sys.executable}\n{program}\n")
        path.chmod(0o755)

    return write


def test_machine_without_gpu(fake_tools: Callable[[str, str], None]) -> None:
    """With no tool and no driver there is no device."""
    assert detect_devices() == []


def test_detection_asks_the_tools(fake_tools: Callable[[str, str], None]) -> None:
    """Devices of both vendors are found, NVIDIA first."""
    fake_tools("nvidia-smi", "import sys\nassert 'compute_cap' in sys.argv[1]\nprint('0, NVIDIA H200, 9.0')")
    fake_tools("rocminfo", f"print({ROCMINFO!r})")
    assert [device.arch for device in detect_devices()] == ["sm_90", "gfx942", "gfx90a"]


@pytest.mark.parametrize(
    "program",
    [
        "print('0, NVIDIA H200, 9.0'); raise SystemExit(9)",
        "print('NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver')",
        "import sys; sys.stdout.buffer.write(bytes(range(256)))",
        "import time; time.sleep(60)",
    ],
    ids=["fails", "no driver", "garbage", "hangs"],
)
def test_detection_never_raises(
    fake_tools: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """A tool that fails, prints something else or hangs counts as no GPU."""
    monkeypatch.setattr(gpus, "_TIMEOUT_S", 0.3)
    fake_tools("nvidia-smi", program)
    fake_tools("rocminfo", program)
    assert detect_devices() == []


def test_tool_that_cannot_start_is_no_gpu(fake_tools: Callable[[str, str], None], tmp_path: Path) -> None:
    """An executable file that is no program counts as no GPU."""
    fake_tools("nvidia-smi", "")
    path = Path(os.environ["PATH"]) / "nvidia-smi"
    path.write_bytes(b"\x00\x01\x02")
    assert detect_devices() == []


def test_a_device_is_named_without_its_arch() -> None:
    """What a driver prints, or a part of it; the most exact match counts. Others are nobody's."""
    for name, arch in (("NVIDIA H100 80GB HBM3", "sm_90"), ("MI350X", "gfx950"), ("AMD Instinct MI300X OAM", "gfx942")):
        found = gpu_named(name)
        assert found is not None
        assert found.arch == arch
    assert gpu_named("NVIDIA H20") is None
    assert gpu_named("") is None
