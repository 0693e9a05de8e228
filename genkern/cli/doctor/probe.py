"""Checks that may crash or hang, each run as a process of its own: PyTorch, Triton, CuTe DSL, timers, engines.

python -m genkern.cli.doctor.probe NAME [ARGUMENT] writes a JSON list of findings as the last line of its output.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genkern.cli.doctor.finding import Finding, ok, problem, warning
from genkern.errors import one_line
from genkern.installation import pip_install
from genkern.python_child import child_environment, module_argv
from genkern.timing.profiler import TIMERS

# Marks the line with the findings, since libraries print while they are imported.
MARK = "genkern-doctor:"
_SIDE = 256


def torch_findings() -> list[Finding]:
    """Return whether PyTorch multiplies on the GPU, tested on integers so that the result is exact."""
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
    built = built if torch.version.cuda or torch.version.hip else "for CPUs only"
    said = f"{torch.__version__} ({built})"
    if not torch.cuda.is_available():
        return [warning("PyTorch", f"{said} sees no GPU", "without a GPU, genkern predicts times and measures nothing")]
    a = torch.randint(-3, 4, (_SIDE, _SIDE), device="cuda").to(torch.bfloat16)
    b = torch.randint(-3, 4, (_SIDE, _SIDE), device="cuda").to(torch.bfloat16)
    if not torch.equal((a @ b).float().cpu(), a.float().cpu() @ b.float().cpu()):
        return [problem("PyTorch", f"{said}: a product of small integers is wrong", "reinstall PyTorch and the driver")]
    return [ok("PyTorch", f"{said} multiplies on {torch.cuda.get_device_name(0)}")]


def triton_findings(arch: str) -> list[Finding]:
    """Return whether Triton compiles a kernel of one store for an architecture; no GPU is needed."""
    from genkern.compile.compiler import check_compiler
    from genkern.gemm.gpus import gpu_for_arch, triton_target
    from genkern.gemm.triton_release import triton_version
    from genkern.kernels.kernel import Target

    with tempfile.TemporaryDirectory(prefix="genkern-doctor-") as folder:
        check_compiler(Target(*triton_target(gpu_for_arch(arch))), folder)
    return [ok("Triton", f"{triton_version()} compiles for {arch}")]


def cute_findings() -> list[Finding]:
    """Return whether CuTe DSL can be imported. Its kernels are optional."""
    from genkern.kernels.cute.release import cute_installed, cute_version

    if not cute_installed():
        remedy = f"optional; {pip_install('cute')} adds its kernels, which win some large sizes on sm_90"
        return [ok("CuTe DSL", f"not installed ({remedy})")]
    importlib.import_module("cutlass.cute")
    return [ok("CuTe DSL", cute_version())]


def timer_findings(name: str) -> list[Finding]:
    """Return whether a timer takes the time of a kernel that fills 1 MiB."""
    import torch

    from genkern.profiling.timers import make_timer

    if not torch.cuda.is_available():
        return []
    timer, x = make_timer(name), torch.empty(2**20, dtype=torch.int8, device="cuda")

    def call(copy: int) -> None:
        x.zero_()

    call(0)
    torch.cuda.synchronize()
    us = timer.prepare(call, (0, 0, 0, 0))()
    if not 0.0 < us < 1e6:
        return [problem(f"timer {name}", f"takes {us} us for a small kernel", "try another --profiler")]
    return [ok(f"timer {name}", f"{us:.2f} us for a kernel that fills 1 MiB")]


def trace_findings(name: str) -> list[Finding]:
    """Return whether one of AMD's profilers traces the kernel of `timer_findings`."""
    from genkern.profiling.rocm.rocprof_command import find_executable, rocprof_argv, rocprofv3_argv

    executable = find_executable(name, None, os.environ)
    program = module_argv("genkern.cli.doctor.probe", "timer", TIMERS["amd"][1])
    with tempfile.TemporaryDirectory(prefix="genkern-doctor-") as folder:
        output = os.path.join(folder, "trace.csv")
        argv = (
            rocprofv3_argv(executable, program, folder, "trace")
            if name == "rocprofv3"
            else rocprof_argv(executable, program, output)
        )
        done = subprocess.run(argv, env=child_environment(), capture_output=True, text=True, check=False)
        traces = [path for path in Path(folder).rglob("*.csv") if path.stat().st_size]
    if done.returncode or not traces:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        remedy = "install rocprofiler-sdk of the ROCm that PyTorch was built with, or give --profiler hipgraph"
        return [warning(name, f"{executable} writes no trace: {last[:200]}", remedy)]
    return [ok(name, f"{executable} traces a kernel")]


def engine_findings(package: str) -> list[Finding]:
    """Return, for each part of a plugin, whether everything that it touches in the installed engine is there."""
    from genkern.engines.hooks import reason_text, version_of

    name = f"engine {package}"
    parts = importlib.import_module(f"genkern.engines.{package}").parts()
    fit, misfits = [], []
    for part in parts:
        try:
            for touch in part.touches:
                touch.verify()
            fit.append(part.serves)
        except Exception as reason:
            misfits.append(f"{part.serves}: {reason_text(reason)}")
    release = version_of(package)
    found = [ok(name, f"{release}: the plugin fits its {', '.join(fit)}")] if fit else []
    remedy = "docs/engines.md lists the releases that fit; the engine's own code serves these layers"
    return found + [(warning if fit else problem)(name, f"{release}: {each}", remedy) for each in misfits]


PROBES: dict[str, Callable[..., list[Finding]]] = {
    "torch": torch_findings,
    "triton": triton_findings,
    "cute": cute_findings,
    "timer": timer_findings,
    "trace": trace_findings,
    "engine": engine_findings,
}


def main(argv: list[str]) -> None:
    """Run one probe and print its findings. An exception becomes {"failed": reason}."""
    name, *arguments = argv
    said: Any
    # What libraries print must not be taken for the findings.
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            said = [finding.data for finding in PROBES[name](*arguments)]
        except Exception as error:  # a broken installation may raise anything
            said = {"failed": one_line(error)}
    print(f"\n{MARK}{json.dumps(said)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
