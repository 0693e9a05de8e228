"""Prints what a machine has for measuring, as JSON. Runs as a process of its own, since each query may crash or hang.

python -m genkern.cli.new_machine.machine
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from genkern.cli.target import versions, with_amd_smi_facts
from genkern.errors import GenkernError, one_line
from genkern.gemm.gpus import detect_devices, gpu_for_device, output_of
from genkern.profiling.rocm.rocprof_command import find_executable
from genkern.runtime.backends.lt import BACKENDS
from genkern.runtime.backends.lt_backend import Backend


def facts() -> dict[str, Any]:
    """Return the answer to each query, or {"missing": why}."""
    questions: dict[str, Callable[[], Any]] = {
        "host": lambda: f"{len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}",
        "gpus": _gpus,
        "versions": versions,
        "rocm": lambda: _first_line(os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), ".info", "version")),
        "rocprofv3": lambda: _program("rocprofv3"),
        "rocprof": lambda: _program("rocprof"),
        **{name: partial(_library, backend) for name, backend in BACKENDS.items()},
        "aiter": lambda: "installed" if importlib.util.find_spec("aiter") else "not installed",
        "pytorch": _pytorch,
    }
    return {name: _answer(ask) for name, ask in questions.items()}


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:  # a broken installation may raise anything
        return {"missing": one_line(error)}


def _library(backend: Backend) -> str:
    return backend.available() or f"{backend.library().path}, version {backend.library().version}"


def _gpus() -> list[str]:
    devices = detect_devices()
    asked = with_amd_smi_facts([device for device in devices if device.arch.startswith("gfx")])
    known = {device.index: device for device in asked} if asked else {}
    said = []
    for device in devices:
        full = known.get(device.index, device)
        said.append(f"{full.index}: {full.name}, {full.arch}, driver {full.driver or 'unknown'}, {_table_name(full)}")
    return said


def _table_name(device: Any) -> str:
    try:
        return f"taken for {gpu_for_device(device.name, device.arch).name}"
    except GenkernError as error:
        return str(error)


def _first_line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()


def _program(name: str) -> str:
    path = find_executable(name, None, os.environ)
    said = output_of(path, "--version")
    return f"{path}: {' '.join(said.split())[:200] or 'no version given'}"


def _pytorch() -> dict[str, Any]:
    """Return PyTorch's versions, and whether it multiplies on the GPU, tested on integers so that the result is
    exact."""
    import torch

    said: dict[str, Any] = {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}
    if not torch.cuda.is_available():
        return {**said, "missing": "PyTorch sees no GPU"}
    a = torch.randint(-3, 4, (128, 256), device="cuda").to(torch.bfloat16)
    b = torch.randint(-3, 4, (256, 64), device="cuda").to(torch.bfloat16)
    exact = torch.equal((a @ b).float().cpu(), a.float().cpu() @ b.float().cpu())
    return {**said, "gpu": torch.cuda.get_device_name(0), "multiplies": exact}


if __name__ == "__main__":
    print(json.dumps(facts(), indent=2, default=str))
    sys.exit(0)
