"""What a first run does, step by step, for one GPU: pure, but for what the machine was found to have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genkern.command.first.calibrating import FRESH, QUICK, SIZES
from genkern.command.first.proving import TIMED
from genkern.command.first.steps import Step, genkern_step
from genkern.gemm.gpus import Gpu
from genkern.ops.op import op_by_type
from genkern.timing.time_sources import TIMERS, usual_timer

# Decoding and prompts of models of 8 to 70 billion parameters, and small ones: nothing that was fitted on.
TUNED = (
    *((1, 4096, 4096), (16, 6144, 4096), (16, 4096, 14336), (64, 28672, 4096), (128, 5120, 5120), (256, 8192, 1024)),
    *((512, 4096, 4096), (1024, 6144, 4096), (4096, 4096, 4096), *FRESH, (32, 2048, 7168), (2000, 1536, 7168)),
)
_QUICK_TUNED = 3
# Sizes, and timers.
_QUICK_TIMED = 2
# Formats by the types that mean them.
_QUICK_TYPES = "bf16", "fp8e4m3fn"
_ROCPROF = "rocprofv3", "rocprof"


@dataclass(frozen=True)
class Wanted:
    """What of it a person wants, and what all steps are told: options of tuning."""

    folder: Path
    quick: bool = False
    passed_on: tuple[str, ...] = ()


def machine_step(limit_s: float = 90.0) -> Step:
    """What the machine has."""
    return Step("machine", "What this machine has", ("-m", "genkern.command.first.machine"), limit_s)


def timers_of(gpu: Gpu, machine: Mapping[str, Any]) -> list[str]:
    """The timers to compare on this GPU: those of the measured process, and of AMD's profilers those that are there."""
    there = [name for name in _ROCPROF if isinstance(machine.get(name), str)] if gpu.vendor == "amd" else []
    return [*there, *TIMERS[gpu.vendor]]


def first_steps(wanted: Wanted, gpu: Gpu, machine: Mapping[str, Any]) -> list[Step]:
    """Those up to the comparison of timers, which says with what the others measure."""
    folder, timer = wanted.folder, ("--profiler", usual_timer(gpu.vendor))
    argv = ["-m", "genkern.command.first.proving", str(folder), "--timed_sizes", str(_timed(wanted))]
    argv += ["--ops", ",".join(dict.fromkeys(op_by_type(dtype).name for dtype in _QUICK_TYPES))] if wanted.quick else []
    proofs, timed = folder / "proof.yaml", folder / "timed.yaml"
    proof = ["--compare_wo_tuning", "-i", str(proofs), *timer, *wanted.passed_on]
    return [
        Step("compile", "A kernel of each family and format, compiled", (*argv, *wanted.passed_on), 420.0, False),
        genkern_step("prove", "The same kernels, proved to the bit", proof, 300.0, [proofs]),
        *(
            genkern_step(
                f"time_{name}",
                f"Times by {name}",
                [
                    *("--benchmark", "-i", str(timed), "-o", str(folder / f"times_{name}.csv")),
                    *("--profiler", name, *wanted.passed_on),
                ],
                90.0,
                [timed],
            )
            for name in timers_of(gpu, machine)[: _QUICK_TIMED if wanted.quick else None]
        ),
    ]


def last_steps(wanted: Wanted, gpu: Gpu, timer: str) -> list[Step]:
    """Those that measure by `timer`, a --profiler."""
    folder = wanted.folder
    calibrate = ["calibrate", "-o", str(folder / "calibration"), "--profiler", timer]
    calibrate += ["--quick", "--kernels_a_size", "12"] if wanted.quick else []
    sizes, tuned = folder / "sizes.yaml", folder / "tuned.yaml"
    tune = ["-i", str(sizes), "-o", str(tuned), "--dtype_a", "bf16"]
    tune += ["--profiler", timer]
    calibrated = _passed_to(calibrate, wanted.passed_on)
    measured, count = len(QUICK if wanted.quick else SIZES) + len(FRESH), sizes_text(wanted).count("\n")
    steps = [
        genkern_step("calibrate", "The predictor's constants, fitted here", calibrated, 480.0, sizes=measured),
        genkern_step(
            *("tune", "Sizes tuned, beside the library", [*tune, *wanted.passed_on]), 600.0, [sizes], sizes=count
        ),
    ]
    if gpu.vendor == "amd":
        argv = "-m", "genkern.command.first.aiter_proof", *wanted.passed_on
        # Before sizes are tuned, whose race has those of its kernels that are built.
        steps.insert(1, Step("aiter", "AITER's own kernels, built and proved", argv, 240.0))
    return steps


def sizes_text(wanted: Wanted) -> str:
    """The list of sizes to tune."""
    sizes = TUNED[:: len(TUNED) // _QUICK_TUNED] if wanted.quick else TUNED
    return "".join(f"- {{'M': {m}, 'N': {n}, 'K': {k}}}\n" for m, n, k in sizes)


def chosen_timer(gpu: Gpu, ended_well: Collection[str]) -> str:
    """With what to measure: AMD's profiler where it works, which has no launch gaps in its times, else the timers."""
    order: Sequence[str] = (_ROCPROF[0], *TIMERS[gpu.vendor], _ROCPROF[1])
    return next((name for name in order if name in ended_well), usual_timer(gpu.vendor))


def _timed(wanted: Wanted) -> int:
    return _QUICK_TIMED if wanted.quick else len(TIMED)


def _passed_to(argv: Sequence[str], passed_on: Sequence[str]) -> list[str]:
    """With those of the options that `genkern calibrate` has too; it names one GPU alone."""
    return [*argv, *(word.replace("--gpu_ids", "--gpu_id") for word in passed_on)]
