"""The device that a run is for, and the profilers that measure it."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace

import genkern
from genkern.cli.usual_target import usual_gpu
from genkern.errors import InputError, ProfilerError
from genkern.gemm.gpus import (
    NOT_PRESENT,
    DetectedDevice,
    Gpu,
    detect_devices,
    gpu_for_arch,
    gpu_for_device,
    gpu_of_product,
    known_archs,
    output_of,
    partition_of,
    triton_target,
)
from genkern.gemm.triton_release import installed, triton_version
from genkern.installation import pip_install
from genkern.kernels.kernel import Target
from genkern.profiling.early_process import EarlyProcess
from genkern.profiling.predict_profiler import PredictProfiler
from genkern.profiling.rocm.amd_smi import parse_drivers, parse_max_clocks
from genkern.profiling.rocm.rocprof import RocprofProfiler, RocprofV3Profiler
from genkern.profiling.supervised_profiler import SupervisedProfiler
from genkern.result.device import DeviceKey
from genkern.timing.device_lock import DeviceLock
from genkern.timing.profiler import TIMERS, Profiler, usual_timer

_VENDORS = {
    "rocprofv3": "amd",
    "rocprof": "amd",
    **{name: vendor for vendor, names in TIMERS.items() for name in names},
}


@dataclass(frozen=True)
class RunTarget:
    """The device of a run.

    arch: its architecture
    gpu: its figures
    device_name: the driver's name; the model's name with NOT_PRESENT if times are predicted
    gpu_ids: numbers of the GPUs to measure on; empty if times are predicted
    devices: these GPUs as the driver describes them, in the order of `gpu_ids`
    """

    arch: str
    gpu: Gpu
    device_name: str
    gpu_ids: tuple[int, ...]
    devices: tuple[DetectedDevice, ...] = ()

    @property
    def measured(self) -> bool:
        return bool(self.gpu_ids)

    @property
    def key(self) -> DeviceKey:
        """The key of its results."""
        return DeviceKey(self.arch, self.device_name, self.gpu.compute_units)

    @property
    def triton(self) -> Target:
        backend, arch, warp_size = triton_target(self.gpu)
        return Target(backend, arch, warp_size)

    @property
    def driver(self) -> str:
        """The version of the GPUs' driver; empty if unknown, and without a GPU."""
        return ", ".join(sorted({device.driver for device in self.devices if device.driver}))

    @property
    def clocks(self) -> dict[str, dict[str, int]]:
        """For each GPU number, the driver's `sm_clock_max_mhz` and `memory_clock_max_mhz`."""
        named = {str(device.index): (device.sm_clock_max_mhz, device.memory_clock_max_mhz) for device in self.devices}
        return {
            index: {
                name: mhz
                for name, mhz in zip(("sm_clock_max_mhz", "memory_clock_max_mhz"), values, strict=True)
                if mhz is not None
            }
            for index, values in named.items()
        }


def choose_target(options: argparse.Namespace, detected: list[DetectedDevice] | None = None) -> RunTarget:
    """Return the target that the options and the machine's GPUs determine.

    Without a GPU and without such an option, genkern.cli.usual_target decides. Raises InputError for an unknown
    architecture or GPU number, or for GPUs of several kinds, and ProfilerError if the options ask for a measurement
    that this machine cannot make.
    """
    devices = detect_devices() if detected is None else detected
    named = device_option(options.device, options.arch)
    asked = _asked_to_measure(options)
    if not (named or options.arch or devices):
        if asked and options.profiler != "predict":
            vendor = _VENDORS.get(options.profiler, "")
            needs = f"an {vendor.upper()}" if vendor else "a"
            raise ProfilerError(f"{asked} needs {needs} GPU, this machine has none; try --profiler predict")
        gpu = usual_gpu(options)
        return RunTarget(gpu.arch, gpu, f"{gpu.name}{NOT_PRESENT}", ())
    arch = named.arch if named else options.arch or devices[0].arch
    gpu = named or gpu_for_arch(arch)
    fitting = [device for device in devices if device.arch == gpu.arch]
    if named:
        fitting = [device for device in fitting if gpu_for_device(device.name, arch).name == named.name]
    elif fitting:
        gpu = gpu_for_device(fitting[0].name, arch)
    if options.profiler == "predict" or not (fitting or asked):
        return RunTarget(gpu.arch, gpu, f"{gpu.name}{NOT_PRESENT}", ())
    vendor = _VENDORS.get(options.profiler, gpu.vendor)
    if vendor != gpu.vendor:
        raise ProfilerError(f"{asked} is for {vendor.upper()} GPUs, {gpu.arch} is not one; try --profiler auto")
    if not fitting:
        needs = f"a {gpu.arch}" if options.arch else f"an {vendor.upper()}" if options.profiler in _VENDORS else "a"
        needs = f"an {named.name}" if named else needs
        here = ", ".join(sorted({device.name if named else device.arch for device in devices})) or "none"
        raise ProfilerError(f"{asked} needs {needs} GPU, this machine has {here}; try --profiler predict")
    if not installed("torch"):
        raise ProfilerError(f"measuring needs PyTorch: {pip_install('torch')}, or --profiler predict")
    alike = [each for each in fitting if _kind(each) == _kind(fitting[0])] if options.all_gpus else fitting
    count = options.ngpus or (len(alike) if options.all_gpus else 1)
    wanted = options.gpu_ids or tuple(device.index for device in alike[:count])
    known = [device.index for device in fitting]
    for number in wanted:
        if number not in known:
            there = ", ".join(map(str, known))
            raise InputError(f"--gpu_ids {number}: there is no such {gpu.arch} GPU; there is {there}")
    if options.ngpus and options.ngpus > len(fitting):
        raise InputError(f"--ngpus {options.ngpus}: this machine has {len(fitting)} {gpu.arch} GPU(s)")
    chosen = [next(device for device in fitting if device.index == number) for number in wanted]
    device, *others = chosen
    for other in others:
        # The sizes of a run are pruned, and their weights rotated, for one device, whose name all results carry.
        if (other.name, other.compute_units) != (device.name, device.compute_units):
            raise InputError(
                f"GPU {device.index} is {_kind(device)}, GPU {other.index} is {_kind(other)}: the GPUs of one run must "
                "be of one kind; give --gpu_ids of one of them"
            )
    found = partition_of(gpu_for_device(device.name, gpu.arch), device.compute_units)
    described = tuple(chosen if gpu.vendor == "nvidia" else with_amd_smi_facts(chosen))
    return RunTarget(gpu.arch, found, device.name, wanted, described)


def devices_to_measure(command: str) -> list[DetectedDevice]:
    """Return this machine's GPUs, for a command that measures. Raises InputError if there is none."""
    if devices := detect_devices():
        return devices
    raise InputError(f"{command} measures, and this machine has no GPU that genkern can measure on")


def add_gpu(group: argparse._ArgumentGroup) -> None:
    """Add the options of `require_gpu`."""
    group.add_argument("--arch", choices=known_archs(), metavar="ARCH", help="the GPU to compile for")
    group.add_argument(
        "--device", metavar="NAME", help="a GPU of that architecture, as 'NVIDIA H100' (default: the first of --arch)"
    )


def require_gpu(options: argparse.Namespace) -> None:
    """Set `options.gpu` to the GPU that --device or --arch names, and `options.arch` to its architecture.

    Raises InputError if both options are missing, and as `device_option`.
    """
    if options.arch is None and options.device is None:
        raise InputError("which GPU? Give --arch ARCH, or --device NAME")
    options.gpu = device_option(options.device, options.arch) or gpu_for_arch(options.arch)
    options.arch = options.gpu.arch


def device_option(device: str | None, arch: str | None) -> Gpu | None:
    """Return the GPU that --device names; None if it is not given. Raises InputError if it is unknown or not of
    --arch."""
    if device is None:
        return None
    gpu = gpu_of_product(device)
    if arch is not None and gpu_for_arch(arch).arch != gpu.arch:
        raise InputError(f"--device {device} is {gpu.arch}, --arch is {arch}: give one of them")
    return gpu


def with_amd_smi_facts(devices: Sequence[DetectedDevice]) -> list[DetectedDevice]:
    """Return the devices with driver and clocks from amd-smi; unchanged if amd-smi is missing."""
    found = []
    for device in devices:
        gpu = "--gpu", str(device.index), "--json"
        driver, *_ = [*parse_drivers(output_of("amd-smi", "static", "--driver", *gpu)), ""]
        sm_mhz, memory_mhz = parse_max_clocks(output_of("amd-smi", "metric", "--clock", *gpu))
        found.append(replace(device, driver=driver, sm_clock_max_mhz=sm_mhz, memory_clock_max_mhz=memory_mhz))
    return found


def _kind(device: DetectedDevice) -> str:
    return device.name + (f" with {device.compute_units} compute units" if device.compute_units else "")


def _asked_to_measure(options: argparse.Namespace) -> str:
    """Return the option or command that asks for a measurement, as the user wrote it; "" if there is none."""
    if options.profiler in _VENDORS:
        return f"--profiler {options.profiler}"
    if options.gpu_ids:
        return f"--gpu_ids {','.join(map(str, options.gpu_ids))}"
    return f"--ngpus {options.ngpus}" if options.ngpus else str(options.measures)


def shares_device(target: RunTarget, choice: str) -> bool:
    """Return True if several profilers may share one GPU. Profilers that trace from outside cannot; nor if times are
    predicted."""
    return target.measured and (choice in TIMERS[target.gpu.vendor] or target.gpu.vendor == "nvidia")


def make_profiler(
    target: RunTarget,
    choice: str,
    index: int,
    cache_dir: str,
    log_dir: str,
    device_lock: DeviceLock | None = None,
    early: EarlyProcess | None = None,
    *,
    rehearses: bool = False,
) -> Profiler:
    """Return the profiler of GPU number `index`, whose lock is `turn`; `early`: a measured process that runs already.

    Raises ProfilerError if its program is missing.
    """
    if not target.measured:
        return PredictProfiler(target.gpu.name)
    if shares_device(target, choice):
        time_source = usual_timer(target.gpu.vendor) if choice == "auto" else choice
        return SupervisedProfiler(
            time_source, index, cache_dir, log_dir, device_lock=device_lock, early=early, rehearses=rehearses
        )
    if choice == "rocprof":
        return RocprofProfiler()
    return RocprofV3Profiler()


def make_device_checker(
    target: RunTarget, profiler: Profiler, index: int, cache_dir: str, log_dir: str
) -> SupervisedProfiler:
    """Return the process that checks outputs on GPU number `index`: the profiler's own, or a separate one beside
    rocprof."""
    if isinstance(profiler, SupervisedProfiler):
        return profiler
    return SupervisedProfiler(usual_timer(target.gpu.vendor), index, cache_dir, log_dir)


def versions() -> dict[str, str]:
    """Return the versions that a result depends on. Raises ProfilerError if Triton is not installed."""
    found = {"genkern": genkern.__version__, "python": platform.python_version()}
    found["triton"] = triton_version()
    if not found["triton"]:
        raise ProfilerError("Triton is not installed here: pip install 'triton>=3.6,<3.10'")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        found["torch"] = importlib.metadata.version("torch")
    return found
