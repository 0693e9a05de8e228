"""Which device a run is for, and which profilers measure it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import platform
from collections.abc import Mapping
from dataclasses import dataclass

import genkern
from genkern.errors import InputError, ProfilerError, ResultsError
from genkern.gpus import DetectedDevice, Gpu, detect_devices, gpu_for_arch, gpu_for_device, triton_target
from genkern.kernel import Target
from genkern.profiling.predict import PredictProfiler
from genkern.profiling.rocprof import RocprofProfiler, RocprofV3Profiler
from genkern.profiling.served import ServedProfiler
from genkern.profiling.session import Profiler

DEFAULT_ARCH = "gfx942"


@dataclass(frozen=True)
class RunTarget:
    """The architecture, the device's figures, and the numbers of the GPUs to measure on (none: predict)."""

    arch: str
    gpu: Gpu
    device_name: str
    gpu_ids: tuple[int, ...]

    @property
    def measured(self) -> bool:
        return bool(self.gpu_ids)

    @property
    def triton(self) -> Target:
        backend, arch, warp_size = triton_target(self.gpu)
        return Target(backend, arch, warp_size)


def choose_target(options: argparse.Namespace, detected: list[DetectedDevice] | None = None) -> RunTarget:
    """The target that the options and the machine's GPUs mean.

    Raises InputError for an unknown architecture or GPU number, ProfilerError when a measurement is asked
    for that this machine cannot make.
    """
    devices = detect_devices() if detected is None else detected
    arch = options.arch or (devices[0].arch if devices else DEFAULT_ARCH)
    gpu = gpu_for_arch(arch)
    fitting = [device for device in devices if device.arch == gpu.arch]
    if options.profiler == "predict" or (options.profiler == "auto" and not fitting):
        return RunTarget(gpu.arch, gpu, f"{gpu.name} (not present)", ())
    if not fitting:
        here = ", ".join(sorted({device.arch for device in devices})) or "none"
        raise ProfilerError(f"--profiler {options.profiler} needs a {gpu.arch} GPU, found: {here}; try --profiler predict")
    if options.profiler in ("rocprofv3", "rocprof") and gpu.vendor != "amd":
        raise ProfilerError(f"--profiler {options.profiler} is for AMD GPUs, {gpu.arch} is not one; try --profiler auto")
    if options.profiler in ("cupti", "cudagraph") and gpu.vendor != "nvidia":
        raise ProfilerError(f"--profiler {options.profiler} is for NVIDIA GPUs, {gpu.arch} is not one; try --profiler auto")
    if importlib.util.find_spec("torch") is None:
        raise ProfilerError("measuring needs PyTorch in this environment: pip install 'genkern[torch]', or --profiler predict")
    wanted = options.gpu_ids or tuple(device.index for device in fitting[: options.ngpus or 1])
    for number in wanted:
        if number not in {device.index for device in fitting}:
            known = ", ".join(str(device.index) for device in fitting)
            raise InputError(f"--gpu_ids {number}: there is no such {gpu.arch} GPU; there are {known}")
    if options.ngpus and options.ngpus > len(fitting):
        raise InputError(f"--ngpus {options.ngpus}: there are only {len(fitting)} {gpu.arch} GPUs")
    name = next(device.name for device in fitting if device.index == wanted[0])
    return RunTarget(gpu.arch, gpu_for_device(name, gpu.arch), name, wanted)


def make_profiler(target: RunTarget, choice: str, index: int, cache_dir: str, log_dir: str) -> Profiler:
    """The profiler of GPU number `index`. Raises ProfilerError when its program is missing."""
    if not target.measured:
        return PredictProfiler()
    if target.gpu.vendor == "nvidia":
        return ServedProfiler("cupti" if choice == "cupti" else "cudagraph", index, cache_dir, log_dir)
    if choice == "rocprof":
        return RocprofProfiler()
    return RocprofV3Profiler()


def make_device_checker(target: RunTarget, profiler: Profiler, index: int, cache_dir: str, log_dir: str) -> ServedProfiler:
    """The process that checks outputs on GPU number `index`: the profiler's own on NVIDIA, another one on AMD."""
    if isinstance(profiler, ServedProfiler):
        return profiler
    return ServedProfiler("cudagraph", index, cache_dir, log_dir, "HIP_VISIBLE_DEVICES")


def versions() -> dict[str, str]:
    """Versions that a result depends on. Raises ResultsError when Triton is not installed."""
    found = {"genkern": genkern.__version__, "python": platform.python_version()}
    for package in ("triton", "torch"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            if package == "triton":
                raise ResultsError("Triton is not installed in this environment: pip install 'triton>=3.6,<3.10'") from None
    return found


