"""`genkern doctor`: one line for each check of this machine, with the remedy for everything that is not ok."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec

from rich.console import Console

from genkern.arguments import Parser, number, underscored
from genkern.cli.doctor import checks
from genkern.cli.doctor.finding import Finding, State, problem
from genkern.cli.doctor.probing import Probe
from genkern.errors import one_line
from genkern.gemm.gpus import DetectedDevice, known_archs
from genkern.gemm.triton_release import installed
from genkern.screen import Screen, put
from genkern.timing.profiler import TIMERS

ENGINES = ("vllm", "sglang")
# An import of PyTorch from a slow disk takes 20 seconds, one of an engine a minute.
_TORCH_S, _COMPILE_S, _TIMER_S, _ENGINE_S = 90.0, 120.0, 60.0, 240.0
_seconds = number("a number of seconds from 1 to 600", 1, 600)


def parse_doctor(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of `genkern doctor`. Raises InputError; SystemExit(0) after printing for --help."""
    p = doctor_parser()
    return p.parse_args(underscored(argv, p))


def doctor_parser() -> Parser:
    """Return the parser; its help is the reference of the command."""
    p = Parser(
        prog="genkern doctor",
        description="Check this machine: GPU, driver, clocks, power, PyTorch, Triton, compilers, timers, cache,\n"
        "bundles and engines. Each line is ok, warning or problem, with a remedy. The exit status is 1 if there is a\n"
        "problem. --json is for bug reports.",
    )
    group = p.add_argument_group("what to check")
    group.add_argument(
        "--quick", action="store_true", help="leave out the checks that import PyTorch, an engine or a compiler"
    )
    group.add_argument(
        "--timeout", type=_seconds, metavar="S", help="most seconds of each process (default: 60 to 240, by the check)"
    )
    group.add_argument("--cache_dir", metavar="DIR", help="folder of compiled kernels (default: as when tuning)")
    group.add_argument("-h", "--help", action="help", help="print this and exit")
    return p


def run_doctor(options: argparse.Namespace, console: Console) -> int:
    """Print the findings as they are made; returns 1 if one of them is a problem."""
    found: list[Finding] = []
    for finding in findings(options):
        found.append(finding)
        put(console, "check", finding.data, finding_lines(finding))
    counts = {state: sum(each.state is state for each in found) for state in State}
    status = 1 if counts[State.PROBLEM] else 0
    said = ", ".join(f"{count} {state.value}" for state, count in counts.items())
    values = {"status": status, **{state.value: count for state, count in counts.items()}}
    put(console, "summary", values, [f"{said}{_next(counts, console)}"])
    return status


def finding_lines(finding: Finding) -> list[str]:
    """Return the line of a finding, and a second one with the remedy."""
    line = f"{finding.state.value:<8} {finding.name}: {finding.said}"
    return [line, f"{'':8} -> {finding.remedy}"] if finding.remedy else [line]


def _next(counts: dict[State, int], console: Console) -> str:
    if isinstance(console, Screen) and console.is_json:
        return ""
    if counts[State.PROBLEM]:
        return "; next: do what the lines with -> say, then run genkern doctor again"
    return "; next: genkern tune FILE"


def findings(options: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings of all checks. A check that fails for any reason becomes a problem with the reason."""
    devices: list[DetectedDevice] = []
    yield from _safely("host", checks.host_findings)
    try:
        devices = checks.detected()
    except Exception as error:  # a broken driver's program may print anything
        yield problem("GPU", one_line(error), "run nvidia-smi or rocminfo by hand")
    yield from _safely("GPU", lambda: checks.gpu_findings(devices))
    yield from _safely("GPU state", checks.gpu_state_findings)
    yield from _safely("packages", checks.package_findings)
    yield from _safely("compilers", lambda: checks.compiler_findings(devices))
    if not options.quick:
        for probe in probes(devices, options.timeout):
            yield from probe.run()
    yield from _safely("cache", lambda: checks.cache_findings(options.cache_dir))
    yield from _safely("bundles", lambda: checks.bundle_findings(os.environ, devices))


def _safely(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:  # doctor reports what is broken instead of failing by it
        return [problem(name, f"the check failed: {one_line(error)}", "please report this line")]


def probes(devices: Sequence[DetectedDevice], limit_s: float | None) -> Iterator[Probe]:
    """Yield the probes that make sense on this machine, each with its time limit."""

    def limited(usual_s: float) -> float:
        return usual_s if limit_s is None else limit_s

    known = [device for device in devices if device.arch in known_archs()]
    arch = known[0].arch if known else "sm_90"
    if installed("torch"):
        remedy = "import torch by hand; a process that hangs in the driver needs a reset of the GPU or a reboot"
        yield Probe("PyTorch", ("torch",), limited(_TORCH_S), remedy)
    if installed("triton"):
        remedy = "check TMPDIR, the C compiler and the installed Triton (pip install --force-reinstall triton)"
        yield Probe("Triton", ("triton", arch), limited(_COMPILE_S), remedy)
    yield Probe("CuTe DSL", ("cute",), limited(_COMPILE_S), "reinstall genkern's extra cute", is_fatal=False)
    if known and installed("torch"):
        vendor = "nvidia" if arch.startswith("sm_") else "amd"
        for place, name in enumerate(TIMERS[vendor]):
            more = " (CUPTI may need root, or an option of the driver)" if name == "cupti" else ""
            remedy = f"give --profiler another timer{more}"
            yield Probe(f"timer {name}", ("timer", name), limited(_TIMER_S), remedy, is_fatal=place == 0)
        if vendor == "amd":
            for name in ("rocprofv3", "rocprof"):
                remedy = "install rocprofiler-sdk of the ROCm that PyTorch was built with"
                yield Probe(name, ("trace", name), limited(_TIMER_S), remedy, is_fatal=False)
    for package in ENGINES:
        if find_spec(package) is not None:
            remedy = f"import {package} by hand; docs/engines.md lists the releases that fit"
            yield Probe(f"engine {package}", ("engine", package), limited(_ENGINE_S), remedy)
