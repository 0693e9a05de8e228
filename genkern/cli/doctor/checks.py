"""Checks of `genkern doctor` that read programs' output and files, and launch nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from genkern import __version__
from genkern.cli.doctor.finding import Finding, ok, problem, warning
from genkern.errors import GenkernError, InputError
from genkern.file_io import cache_folder, shown_path
from genkern.gemm.gpus import DetectedDevice, detect_devices, gpu_for_device, known_archs, output_of
from genkern.gemm.triton_release import triton_version
from genkern.installation import pip_install
from genkern.private_folders import replacement_risk
from genkern.runtime.bundles.bundle import Bundle
from genkern.runtime.bundles.shipped_bundles import WORD, shipped_bundles
from genkern.runtime.calls.configuration import CONFIG, configuration
from genkern.runtime.process.bundle_sources import Sources

# Releases that setup.cfg asks for.
_TRITON = (3, 6), (3, 10)
_GIB = 2**30
# A search of a size writes up to some 100 MB of binaries.
_LEAST_FREE_BYTES = 2 * _GIB
# Other programs that hold more memory of the GPU than this are likely to use it while genkern measures.
_BUSY_MIB, _BUSY_PERCENT = 1024, 10
_STATE = (
    "index,name,clocks.sm,clocks.max.sm,clocks.applications.graphics,power.draw,power.limit,power.default_limit,"
    "temperature.gpu,utilization.gpu,memory.used,memory.total,persistence_mode,mig.mode.current,"
    "clocks_throttle_reasons.active"
)
# Bits of clocks_throttle_reasons.active that slow a kernel down (nvml.h); 1 is "idle", 2 are clocks set by a user.
_THROTTLED = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def host_findings() -> list[Finding]:
    """Return genkern's release, Python and the cores that this process may use."""
    cores = len(os.sched_getaffinity(0))
    said = f"genkern {__version__}, Python {sys.version.split()[0]}, {cores} core{'s' * (cores > 1)}"
    return [ok("host", said)]


def gpu_findings(devices: Sequence[DetectedDevice]) -> list[Finding]:
    """Return each GPU with its driver, and whether genkern knows it."""
    if not devices:
        seen = "nvidia-smi" if shutil.which("nvidia-smi") else "rocminfo" if shutil.which("rocminfo") else ""
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and seen == "nvidia-smi":
            said = f"CUDA_VISIBLE_DEVICES={hidden!r} leaves no GPU"
            return [problem("GPU", said, "unset CUDA_VISIBLE_DEVICES, or name a GPU of nvidia-smi -L")]
        how = f"{seen} lists none" if seen else "neither nvidia-smi nor rocminfo is on PATH, and there is no /dev/kfd"
        remedy = "in a container, start it with the GPU (docker run --gpus all); without a GPU genkern only predicts"
        return [warning("GPU", f"none: {how}", remedy)]
    found = []
    for device in devices:
        name, driver = f"GPU {device.index}", f"driver {device.driver or 'unknown'}"
        if device.arch not in known_archs():
            remedy = "add it in a file that GENKERN_GPU_FILES names (docs/your_own_gpu.md)"
            found.append(problem(name, f"{device.name}, {device.arch}, is not in genkern's table", remedy))
            continue
        model = gpu_for_device(device.name, device.arch).name
        found.append(ok(name, f"{device.name or model}, {device.arch}, {driver}, taken for {model}"))
    return found


def gpu_state_findings() -> list[Finding]:
    """Return clocks, power, temperature and load of NVIDIA GPUs; nothing without nvidia-smi."""
    text = output_of("nvidia-smi", f"--query-gpu={_STATE}", "--format=csv,noheader,nounits")
    return [finding for line in text.splitlines() for finding in state_of(line)]


def state_of(line: str) -> Iterator[Finding]:
    """Yield the findings about one GPU from a line of nvidia-smi with the columns `_STATE`."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_STATE.split(",")):
        return
    said = dict(zip(_STATE.split(","), cells, strict=True))
    name = f"GPU {said['index']}"
    reasons = _bits(said["clocks_throttle_reasons.active"])
    sm_mhz, most_mhz = _number(said["clocks.sm"]), _number(said["clocks.max.sm"])
    if sm_mhz is not None and most_mhz is not None:
        yield ok(f"{name} clocks", f"SM at {sm_mhz:.0f} of {most_mhz:.0f} MHz")
    draw, limit, usual = (_number(said[key]) for key in ("power.draw", "power.limit", "power.default_limit"))
    if limit is not None:
        text = f"{draw or 0:.0f} of {limit:.0f} W"
        if usual is not None and limit < usual:
            remedy = f"nvidia-smi -i {said['index']} -pl {usual:.0f} restores it (as root); times are of a slower GPU"
            yield warning(f"{name} power", f"{text}: the limit is below the default of {usual:.0f} W", remedy)
        else:
            yield ok(f"{name} power", text)
    if slow := [text for bit, text in _THROTTLED.items() if reasons & bit]:
        heat = f" at {said['temperature.gpu']} C" if _number(said["temperature.gpu"]) is not None else ""
        remedy = "check cooling and power before measuring: genkern discards throttled samples, and may find too few"
        yield warning(f"{name} throttling", f"{', '.join(slow)}{heat}", remedy)
    else:
        yield ok(f"{name} throttling", f"none, {said['temperature.gpu']} C")
    load, used = _number(said["utilization.gpu"]), _number(said["memory.used"])
    if (load or 0) >= _BUSY_PERCENT or (used or 0) >= _BUSY_MIB:
        remedy = "measure on an idle GPU, or give --shared_gpu, so that results say so"
        yield warning(f"{name} load", f"in use: {load or 0:.0f} % busy, {used or 0:.0f} MiB of memory", remedy)
    else:
        yield ok(f"{name} load", "idle")
    if said["persistence_mode"] == "Disabled":
        remedy = f"nvidia-smi -i {said['index']} -pm 1 (as root) keeps the driver loaded between processes"
        yield warning(f"{name} driver", "persistence mode is off: each process waits for the driver", remedy)
    if said["mig.mode.current"] == "Enabled":
        remedy = "a MIG part is another device than the whole GPU: winners of the whole GPU do not serve it"
        yield warning(f"{name} MIG", "the GPU is divided", remedy)


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def _bits(text: str) -> int:
    with contextlib.suppress(ValueError):
        return int(text, 16)
    return 0


def package_findings() -> list[Finding]:
    """Return the installed releases of Triton and NumPy; PyTorch and CuTe DSL are tried by probes."""
    found = []
    release = triton_version()
    numbers = tuple(map(int, re.findall(r"\d+", release)[:2]))
    wanted = "3.6 to 3.9"
    if not release:
        found.append(problem("Triton", "not installed", f"pip install 'triton>=3.6,<3.10' ({wanted})"))
    elif not _TRITON[0] <= numbers < _TRITON[1]:
        found.append(warning("Triton", f"{release} is untested", f"install a release from {wanted}"))
    if not _version("torch"):
        remedy = f"{pip_install('torch')} for measuring and for checks without a GPU"
        found.append(warning("PyTorch", "not installed", remedy))
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def compiler_findings(devices: Sequence[DetectedDevice]) -> list[Finding]:
    """Return the host's C compiler, which Triton and the C extension need, ptxas, and genkern's C extension."""
    found = []
    named = os.environ.get("CC", "")
    compiler = next(filter(None, map(shutil.which, filter(None, (named, "cc", "gcc", "clang")))), "")
    if compiler:
        said = (output_of(compiler, "--version").splitlines() or [""])[0]
        found.append(ok("C compiler", f"{compiler}: {said}"))
    else:
        remedy = "apt-get install gcc libc6-dev: Triton builds its launcher with it on a GPU (CC names another one)"
        found.append((problem if devices else warning)("C compiler", "none of $CC, cc, gcc and clang", remedy))
    if (ptxas := _ptxas()) is not None:
        said = next((line.strip() for line in output_of(ptxas, "--version").splitlines() if "release" in line), "")
        found.append(
            ok("ptxas", f"{ptxas}: {said}")
            if said
            else problem("ptxas", f"{ptxas} does not run", "reinstall Triton, or set TRITON_PTXAS_PATH")
        )
    try:
        from genkern.runtime.launch import _native  # type: ignore[attr-defined]

        found.append(ok("C extension", f"{Path(_native.__file__).name} launches winners"))
    except ImportError:
        remedy = "install genkern again with a C compiler and Python's headers (docs/install.md)"
        found.append(warning("C extension", "not compiled: calls are launched by ctypes, which is slower", remedy))
    return found


def _ptxas() -> str | None:
    """Return the path of Triton's ptxas, or of the one that TRITON_PTXAS_PATH names; None without Triton."""
    if named := os.environ.get("TRITON_PTXAS_PATH"):
        return named
    from importlib.util import find_spec

    spec = find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations)), "backends", "nvidia", "bin", "ptxas")
    return str(path) if path.exists() else None


def cache_findings(named: str | None) -> list[Finding]:
    """Return whether the cache can be written, its size, the free space, and who else may change it."""
    try:
        folder = cache_folder(named)
    except InputError as error:
        return [problem("cache", str(error), "set GENKERN_CACHE_DIR to a folder that you can write")]
    where = shown_path(str(folder))
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        remedy = "set GENKERN_CACHE_DIR to a folder that you can write, or ask its owner (docs/cluster.md: a group)"
        return [problem("cache", f"{where} cannot be written", remedy)]
    try:
        with tempfile.TemporaryFile(dir=above) as file:
            file.write(b"genkern")
            file.flush()
    except OSError as error:
        remedy = "free space, or set GENKERN_CACHE_DIR to another folder"
        return [problem("cache", f"{where} cannot be written: {error.strerror}", remedy)]
    free = shutil.disk_usage(above).free
    if folder.exists():
        entries, size = _size_of(folder)
        mode = stat.S_IMODE(folder.stat().st_mode)
        said = f"{where}: {entries:,} files, {size / _GIB:.2f} GiB, mode {mode:o}, {free / _GIB:.1f} GiB free"
    else:
        said = f"{where} does not exist yet, {free / _GIB:.1f} GiB free"
    if free < _LEAST_FREE_BYTES:
        return [warning("cache", said, "genkern cache --trim 5G frees space")]
    found = [ok("cache", said)]
    if folder.exists() and (fault := replacement_risk(folder)):
        remedy = "only data is read from it; Python modules and packed results go to a private folder"
        found.append(ok("cache", f"{fault} ({remedy})"))
    return found


def _size_of(folder: Path) -> tuple[int, int]:
    """Return the number of files in a folder and their bytes. Files that vanish meanwhile are left out."""
    entries = size = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.stat(os.path.join(at, name), follow_symlinks=False).st_size
                entries += 1
    return entries, size


def bundle_findings(environ: Mapping[str, str], devices: Sequence[DetectedDevice]) -> list[Finding]:
    """Return whether the bundles and results that GENKERN_CONFIG names can be used, and have winners for this GPU."""
    found = []
    asked = configuration(environ)
    for note in asked.notes:
        found.append(problem("variables", note, "correct or unset the variable (docs/dispatch.md lists all)"))
    paths = list(dict.fromkeys((*asked.paths, *(path for each in asked.own_paths.values() for path in each))))
    if not paths:
        if not asked.notes:
            there = f"; GENKERN_CONFIG={WORD} would use those installed with genkern" if shipped_bundles() else ""
            found.append(ok("bundles", f"{CONFIG} is not set: programs call no winners{there}"))
        return found
    said: list[str] = []
    sources = Sources(said.append, pins=asked.pins)
    for path in paths:
        said.clear()
        try:
            bundles = sources.check([path])
        except GenkernError as error:  # check() reports instead of raising; a damaged cache folder may raise
            said.append(str(error))
            bundles = []
        where = shown_path(path)
        unproved = [line for line in said if "have no proof" in line]
        for line in said:
            if line in unproved:
                remedy = f"genkern verify {where} proves them on their GPU"
                found.append(warning(f"bundle {where}", line.partition(": `")[0], remedy))
            else:
                found.append(problem(f"bundle {where}", line, "name another file, or pack it again (genkern pack)"))
        for bundle in bundles:
            found.append(_fit(bundle, where, devices))
        if not bundles and not said:
            found.append(ok(f"results {where}", "can be read; a program packs them when it first needs them"))
    return found


def _fit(bundle: Bundle, where: str, devices: Sequence[DetectedDevice]) -> Finding:
    """Return whether a bundle has winners for a GPU of this machine."""
    name, models = f"bundle {where}", sorted({f"{each.device} ({each.arch})" for each in bundle.winners})
    count = len(bundle.winners)
    mine = {(device.arch, device.name) for device in devices}
    here = sum((each.arch, each.device) in mine for each in bundle.winners)
    said = f"{count} winners for {', '.join(models) or 'no device'}"
    if not devices:
        return ok(name, f"{said}; there is no GPU here to use them")
    if not here:
        remedy = "tune on this GPU, or name a bundle of it; until then PyTorch's own calls serve everything"
        return problem(
            name, f"{said}, none for this machine's {' or '.join(sorted({d.name for d in devices}))}", remedy
        )
    return ok(name, f"{said}; {here} for this machine")


def detected() -> list[DetectedDevice]:
    return detect_devices()
