"""Machines that are not here: with GPUs that answer as the real ones would, or without a package; and all GPUs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from genkern.gemm.gpu_table import read_table
from genkern.gemm.gpus import Gpu

_FAKE = Path(__file__).parent / "fake_machine"


def machine(
    folder: Path, *, gpus: int = 0, rocm: bool = False, driver: str = "570.86.15", sm_mhz: int = 1980, **what: object
) -> dict[str, str]:
    """Changes to the environment of a command, so that it runs on a machine with `gpus` H200s (or, with `rocm`, an
    MI300X) of this driver and highest SM clock; `what` as in fake_machine/sitecustomize.py."""
    programs = folder / "programs"
    programs.mkdir(parents=True, exist_ok=True)
    listing = "".join(f"{i}, NVIDIA H200, 9.0, GPU-0{i}, {driver}, {sm_mhz}, 3201\\n" for i in range(gpus))
    if gpus:
        _script(programs / "nvidia-smi", f"printf '{listing}'")
    agent = "*******\\nAgent 1\\n*******\\n  Name:  gfx942\\n  Marketing Name:  AMD Instinct MI300X\\n"
    _script(programs / "rocminfo", f"printf '{agent}'" if rocm else "exit 1")
    # Nothing else that this machine has is found, the profilers above all.
    for name in ("sh", "printf"):
        if not (programs / name).exists():
            (programs / name).symlink_to(shutil.which(name) or name)
    return {"PATH": str(programs), "PYTHONPATH": str(_FAKE), "MACHINE": json.dumps(what)}


def known_gpus() -> tuple[Gpu, ...]:
    """Every device of the table."""
    return tuple(gpu for known in read_table().values() for _, gpu in known.devices)


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    os.chmod(path, 0o755)
