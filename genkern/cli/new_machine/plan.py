"""The steps of a first run on one GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genkern.cli.new_machine.calibrating import FRESH, QUICK, SIZES
from genkern.cli.new_machine.proving import TIMED
from genkern.cli.new_machine.steps import Step, genkern_step
from genkern.gemm.gpus import Gpu
from genkern.ops.op import op_by_type
from genkern.timing.profiler import TIMERS, usual_timer

# Decoding and prompts of models of 8 to 70 billion parameters, and small sizes; the cost model was not fitted on them.
TUNED = (
    *((1, 4096, 4096), (16, 6144, 4096), (16, 4096, 14336), (64, 28672, 4096), (128, 5120, 5120), (256, 8192, 1024)),
    *((512, 4096, 4096), (1024, 6144, 4096), (4096, 4096, 4096), *FRESH, (32, 2048, 7168), (2000, 1536, 7168)),
)
_QUICK_TUNED = 3
# With --quick: the number of sizes on which timers are compared, and of timers.
_QUICK_TIMED = 2
# With --quick, only the formats of these types are checked.
_QUICK_TYPES = "bf16", "fp8e4m3fn"
_ROCPROF = "rocprofv3", "rocprof"


@dataclass(frozen=True)
class FirstRunRequest:
    """What to run: the folder, whether to be quick, and the options of tuning that all steps get."""

    folder: Path
    quick: bool = False
    passed_on: tuple[str, ...] = ()


def machine_step(limit_s: float = 90.0) -> Step:
    """Return the step that examines the machine."""
    return Step("machine", "What this machine has", ("-m", "genkern.cli.new_machine.machine"), limit_s)


def timers_of(gpu: Gpu, machine: Mapping[str, Any]) -> list[str]:
    """Return the timers to compare on this GPU: AMD's profilers that are installed, then the measured process's
    timers."""
    there = [name for name in _ROCPROF if isinstance(machine.get(name), str)] if gpu.vendor == "amd" else []
    return [*there, *TIMERS[gpu.vendor]]


def first_steps(wanted: FirstRunRequest, gpu: Gpu, machine: Mapping[str, Any]) -> list[Step]:
    """Return the steps up to the comparison of timers, which decides how later steps measure."""
    folder, timer = wanted.folder, ("--profiler", usual_timer(gpu.vendor))
    argv = ["-m", "genkern.cli.new_machine.proving", str(folder), "--timed_sizes", str(_timed(wanted))]
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


def last_steps(wanted: FirstRunRequest, gpu: Gpu, timer: str) -> list[Step]:
    """Return the steps that measure with `timer`, a value of --profiler."""
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
        argv = "-m", "genkern.cli.new_machine.aiter_proof", *wanted.passed_on
        # Before sizes are tuned, since tuning uses the kernels that are built.
        steps.insert(1, Step("aiter", "AITER's own kernels, built and proved", argv, 240.0))
    return steps


def sizes_text(wanted: FirstRunRequest) -> str:
    """Return the list of sizes to tune."""
    sizes = TUNED[:: len(TUNED) // _QUICK_TUNED] if wanted.quick else TUNED
    return "".join(f"- {{'M': {m}, 'N': {n}, 'K': {k}}}\n" for m, n, k in sizes)


def chosen_timer(gpu: Gpu, ended_well: Collection[str]) -> str:
    """Return the timer to measure with: the first that works of rocprofv3, the measured process's timers and rocprof.

    rocprofv3 comes first since its times exclude launch gaps. If none works, returns the vendor's usual timer.
    """
    order: Sequence[str] = (_ROCPROF[0], *TIMERS[gpu.vendor], _ROCPROF[1])
    return next((name for name in order if name in ended_well), usual_timer(gpu.vendor))


def _timed(wanted: FirstRunRequest) -> int:
    return _QUICK_TIMED if wanted.quick else len(TIMED)


def _passed_to(argv: Sequence[str], passed_on: Sequence[str]) -> list[str]:
    """Return the arguments of `genkern calibrate` with the common options, and with --gpu_id for --gpu_ids."""
    return [*argv, *(word.replace("--gpu_ids", "--gpu_id") for word in passed_on)]
