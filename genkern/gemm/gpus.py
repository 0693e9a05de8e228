"""Look-ups in the GPU table (gpus.yaml), and detection of this machine's GPUs."""

from __future__ import annotations

import difflib
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from genkern.errors import InputError
from genkern.gemm.gpu import Capabilities
from genkern.gemm.gpu import Gpu as Gpu
from genkern.gemm.gpu_table import Architecture, read_table

# Suffix of the name of a device whose times are predicted.
NOT_PRESENT = " (not present)"
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
# nvidia-smi takes seconds on a node of eight GPUs if its driver is not kept loaded.
_TIMEOUT_S = 10.0
_QUERY = "index,name,compute_cap,uuid,driver_version,clocks.max.sm,clocks.max.memory"


@dataclass(frozen=True)
class DetectedDevice:
    """A GPU of this machine.

    index: its number among the GPUs that CUDA_VISIBLE_DEVICES or ROCm's topology show
    name: product name; "" if unknown
    arch: architecture
    compute_units: as ROCm reports them (fewer than the product has if it is partitioned); 0 if unknown
    uuid: NVIDIA's, "GPU-..."; "" if unknown
    driver: version of the driver; "" if unknown
    sm_clock_max_mhz, memory_clock_max_mhz: highest clocks of the SMs (AMD: the graphics clock) and of the memory, which
        do not change under load; None if the driver does not report them
    """

    index: int
    name: str
    arch: str
    compute_units: int = 0
    uuid: str = ""
    driver: str = ""
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None


@functools.cache
def _table() -> dict[str, Architecture]:
    return read_table()


def known_archs() -> tuple[str, ...]:
    """Return every architecture of the table: gfx90a ... sm_120."""
    return tuple(_table())


def gpu_for_arch(arch: str) -> Gpu:
    """Return the default device of `arch`. Raises InputError, with the nearest known arch, if there is none.

    Feature suffixes as ROCm prints them (`gfx942:sramecc+:xnack-`) are ignored.
    """
    return _devices_of(arch)[0][1]


def capabilities_of(arch: str) -> Capabilities:
    """Return the capabilities of `arch`, those of its default device; no capabilities for an unknown architecture."""
    return gpu_for_arch(arch).has if _key(arch) in _table() else Capabilities()


def archs_with(capability: str) -> tuple[str, ...]:
    """Return the known architectures with a capability, given by its field name such as "wgmma"."""
    return tuple(arch for arch in known_archs() if getattr(gpu_for_arch(arch).has, capability))


def archs_for_spaces(arch: str) -> tuple[str, ...]:
    """Return the architectures whose spaces serve `arch`: itself, then the one that its entry is `like`, and so on."""
    names, key = [], _key(arch)
    while key and key not in names:
        names.append(key)
        key = gpu_for_arch(key).like if key in _table() else ""
    return tuple(names)


def gpu_for_device(device_name: str, arch: str) -> Gpu:
    """Return the device of `arch` that `device_name` names, or the default of the arch.

    `device_name` is what a driver prints: "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X". Raises InputError for an
    unknown arch.
    """
    devices = _devices_of(arch)
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    matches = [(len(match), gpu) for match, gpu in devices if match <= words]
    return max(matches, key=lambda found: found[0])[1] if matches else devices[0][1]


def gpu_named(device_name: str) -> Gpu | None:
    """Return the device of any arch that `device_name` names, or None if the table has none."""
    words = set(re.findall(r"[a-z0-9]+", device_name.lower()))
    matches = [(len(match), gpu) for known in _table().values() for match, gpu in known.devices if match <= words]
    return max(matches, key=lambda found: found[0])[1] if matches else None


def gpu_of_product(name: str) -> Gpu:
    """Return the device that a user names: "NVIDIA H100", h100, mi300x.

    Raises InputError for an unknown name and for one that several devices share, with the possible names.
    """
    devices = [(match, gpu) for known in _table().values() for match, gpu in known.devices]
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    if words and (exact := gpu_named(name)) is not None:
        return exact
    several = [gpu.name for match, gpu in devices if words & match]
    if len(several) == 1:
        return gpu_of_product(several[0])
    if several:
        raise InputError(f"several devices are called {name!r}: give one of {', '.join(several)}")
    names = [gpu.name for _, gpu in devices]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    raise InputError(f"unknown device {name!r}: {f'did you mean {near[0]}? ' if near else ''}Known: {', '.join(names)}")


def partition_of(gpu: Gpu, compute_units: int) -> Gpu:
    """Return the part of `gpu` that a device with this number of compute units is.

    MI300X in CPX mode shows 8 devices of 38 units and one XCD each. Compute and L2 are scaled to the part. Memory and
    the last-level cache stay whole, since a part may use all of them while the other parts are idle. Returns `gpu`
    itself unless `compute_units` is that of a smaller whole number of XCDs.
    """
    per_xcd = gpu.compute_units // gpu.xcds
    xcds = compute_units // per_xcd
    if not 0 < xcds < gpu.xcds or compute_units != xcds * per_xcd:
        return gpu
    share = xcds / gpu.xcds
    peak_tflops = {dtype: share * tflops for dtype, tflops in gpu.peak_tflops.items()}
    return replace(gpu, compute_units=compute_units, xcds=xcds, l2_mib=share * gpu.l2_mib, peak_tflops=peak_tflops)


def _key(arch: str) -> str:
    return str(arch).strip().lower().split(":")[0]


def _devices_of(arch: str) -> Sequence[tuple[frozenset[str], Gpu]]:
    key = _key(arch)
    if key not in _table():
        # Accept a product name (MI300X, "NVIDIA H100") and suggest its architecture.
        models = {word for word in re.findall(r"[a-z0-9]*[0-9][a-z0-9]*", key) if not word.endswith("gb")}
        products = [name for name, known in _table().items() if any(models & match for match, _ in known.devices)]
        near = products or difflib.get_close_matches(key, known_archs(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"unknown arch {arch!r}: {hint}Known: {', '.join(known_archs())}")
    return _table()[key].devices


def triton_target(gpu: Gpu) -> tuple[str, str | int, int]:
    """Return the arguments of Triton's GPUTarget: ("hip", "gfx942", 64) or ("cuda", 90, 32)."""
    if gpu.vendor == "amd":
        return "hip", gpu.arch, gpu.warp_size
    return "cuda", int(gpu.arch.removeprefix("sm_")), gpu.warp_size


def detect_arch() -> str | None:
    """Return the arch of this machine's first GPU, or None. Never raises; needs no PyTorch."""
    devices = detect_devices()
    return devices[0].arch if devices else None


def detect_devices() -> list[DetectedDevice]:
    """Return the GPUs of this machine, NVIDIA before AMD. An arch may be missing in the table.

    Runs nvidia-smi, then rocminfo, then reads the kernel driver's topology files. Each program is given 10 seconds.
    Never raises. CUDA_VISIBLE_DEVICES is respected, as batch systems set it; rocminfo respects ROCR_VISIBLE_DEVICES.
    """
    nvidia = parse_nvidia_smi(output_of("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"))
    nvidia = shown_by_cuda(nvidia, os.environ.get("CUDA_VISIBLE_DEVICES"))
    amd = parse_rocminfo(output_of("rocminfo", folder=Path(os.environ.get("ROCM_PATH", "/opt/rocm")) / "bin"))
    # A container sees the host's topology even without a GPU of its own; then /dev/kfd is missing.
    if not amd and os.path.exists("/dev/kfd"):
        amd = read_kfd(_KFD)
    return nvidia + amd


def parse_nvidia_smi(text: str) -> list[DetectedDevice]:
    """Parse `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`; other lines are ignored.

    Unknown ("[N/A]") or missing values become None or "".
    """
    line = r"^\s*(\d+)\s*,\s*(.+?)\s*,\s*(\d+)\.(\d+)\s*(?:,(.*))?$"
    found = []
    for index, name, major, minor, rest in re.findall(line, text, re.MULTILINE):
        uuid, driver, *clocks = [*(part.strip() for part in rest.split(",")), "", "", ""][:4]
        sm_mhz, memory_mhz = (int(clock) if re.fullmatch(r"[0-9]{1,6}", clock) else None for clock in clocks)
        told = driver if re.fullmatch(r"[0-9][0-9.]{0,40}", driver) else ""
        found.append(DetectedDevice(int(index), name, f"sm_{major}{minor}", 0, uuid, told, sm_mhz, memory_mhz))
    return found


def shown_by_cuda(devices: Sequence[DetectedDevice], shown: str | None) -> list[DetectedDevice]:
    """Return the devices that CUDA_VISIBLE_DEVICES = `shown` leaves, numbered as CUDA then numbers them.

    As in CUDA, the list ends at the first number or UUID that no device has. A part of a GPU ("MIG-...") counts as the
    first device, since nvidia-smi does not say which GPU it belongs to.
    """
    if shown is None:
        return list(devices)
    found: list[DetectedDevice] = []
    for name in filter(None, (part.strip() for part in shown.split(","))):
        mine = [
            device
            for device in devices
            if name == str(device.index)
            or name.startswith("MIG-")
            or (name[:4] == "GPU-" and device.uuid.startswith(name))
        ]
        if not mine:
            break
        found.append(replace(mine[0], index=len(found)))
    return found


def parse_rocminfo(text: str) -> list[DetectedDevice]:
    """Parse the GPU agents of `rocminfo`, in its order."""
    found: list[DetectedDevice] = []
    for agent in re.split(r"^\*+\s*\n\s*Agent \d+", text, flags=re.MULTILINE)[1:]:
        arch = re.search(r"^\s*Name:\s*(gfx[0-9a-f]+)\s*$", agent, re.MULTILINE)
        name = re.search(r"^\s*Marketing Name:[ \t]*(.*?)\s*$", agent, re.MULTILINE)
        units = re.search(r"^\s*Compute Unit:\s*(\d{1,6})\s*$", agent, re.MULTILINE)
        if arch:
            device = DetectedDevice(len(found), name[1] if name else "", arch[1], int(units[1]) if units else 0)
            found.append(device)
    return found


def read_kfd(nodes: Path) -> list[DetectedDevice]:
    """Read the GPUs from the amdgpu driver's topology folder; `gfx_target_version` 90402 is gfx942."""
    found: list[DetectedDevice] = []
    for node in _numbered(nodes):
        try:
            properties = (node / "properties").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        match = re.search(r"^gfx_target_version (\d+)$", properties, re.MULTILINE)
        version = int(match[1]) if match else 0  # 0 is a CPU
        if version:
            major, minor, step = version // 10000, version // 100 % 100, version % 100
            simds, per_unit = (
                int(value[1]) if (value := re.search(rf"^{key} (\d{{1,6}})$", properties, re.MULTILINE)) else 0
                for key in ("simd_count", "simd_per_cu")
            )
            units = simds // per_unit if per_unit else 0
            found.append(DetectedDevice(len(found), "", f"gfx{major}{minor:x}{step:x}", units))
    return found


def _numbered(folder: Path) -> Iterable[Path]:
    try:
        return sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    except OSError:
        return ()


def output_of(program: str, *arguments: str, folder: Path | None = None) -> str:
    """Return the standard output of a program, or "" if it is missing, hangs or fails."""
    path = shutil.which(program) or (str(folder / program) if folder else "")
    if not path:
        return ""
    try:
        done = subprocess.run(
            [path, *arguments], capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.decode("utf-8", errors="replace") if done.returncode == 0 else ""
