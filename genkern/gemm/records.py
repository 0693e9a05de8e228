"""Records of what happens to a candidate. Every candidate ends in exactly one outcome; units are in the field names."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from genkern.decoding import Whole
from genkern.gemm.config import Config

# Time source of predicted times, which no clock has measured.
PREDICTED = "predicted"
# Which call won: the config or the library (vendor) if it is clearly faster, else neither (tie). After a tie the
# library is called, since another kernel gains nothing and the library is widely trusted.
CHOICES = CONFIG_WINS, VENDOR_WINS, TIE = "config", "vendor", "tie"
# Method of a check that could not be made.
NOT_CHECKED = "not checked"


class Outcome(str, Enum):
    """The one way in which a candidate ended. The summary of a run counts all of them."""

    ILLEGAL = "illegal"
    PRUNED = "pruned"
    COMPILE_FAILED = "compile_failed"
    COMPILE_TIMED_OUT = "compile_timed_out"
    OVER_RESOURCES = "over_resources"
    IDENTICAL = "identical"
    PREDICTED_OUT = "predicted_out"
    LAUNCH_FAILED = "launch_failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    WRONG = "wrong"
    UNCHECKED = "unchecked"
    NOT_SEEN = "not_seen"
    MEASURED = "measured"

    def said_of(self, time_source: str) -> str:
        """Return the outcome in words: "predicted" instead of "measured" if the times are the predictor's."""
        return PREDICTED if self is Outcome.MEASURED and time_source == PREDICTED else self.value


@dataclass(frozen=True)
class Resources:
    """What one binary needs of the hardware; None for values that the binary does not state.

    registers: 32-bit registers per thread (on CDNA the unified total)
    accumulator_registers: the AGPRs among them
    scalar_registers: scalar registers per wave (AMD)
    spills: spilled registers
    shared_bytes: LDS or shared memory per workgroup
    scratch_bytes: local memory per thread
    code_sha256: digest of everything that the hardware executes; binaries with equal digests differ only in their names
    loop_*: instruction counts of a Triton kernel's main loop by kind (genkern.compile.binary.main_loop)
    """

    registers: Whole | None = None
    accumulator_registers: Whole | None = None
    scalar_registers: Whole | None = None
    spills: Whole | None = None
    shared_bytes: Whole | None = None
    scratch_bytes: Whole | None = None
    code_sha256: str | None = None
    loop_instructions: Whole | None = None
    loop_matrix: Whole | None = None
    loop_fma: Whole | None = None
    loop_shared: Whole | None = None
    loop_loads: Whole | None = None
    loop_syncs: Whole | None = None


@dataclass(frozen=True)
class Binary:
    """One compiled kernel in the cache.

    key: its content address
    path: its folder
    symbol: name of the kernel in it
    resources: what it needs of the hardware
    compile_s: seconds that its compile took; None if the entry does not say
    """

    key: str
    path: str
    symbol: str
    resources: Resources
    compile_s: float | None = None


def code_digest(codes: Sequence[str | None]) -> str:
    """Return 16 hexadecimal digits that identify the machine code of a call's binaries; "" if one of them is unknown.

    `codes`: the `code_sha256` of each binary.
    """
    return "" if None in codes or not codes else hashlib.sha256(" ".join(map(str, codes)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Candidate:
    """A config with the compiled binaries of its kernels, ready to be measured.

    config: the config
    binaries: its binaries; may be empty
    plan: LaunchPlan (genkern.kernels.plan) as JSON, the same text for all configs with these binaries; "" without
        binaries
    run_time: the run-time arguments that the plan leaves to the config, by name
    deterministic: two calls give equal bits
    """

    config: Config
    binaries: tuple[Binary, ...]
    plan: str = ""
    run_time: tuple[tuple[str, int], ...] = ()
    deterministic: bool = True

    @property
    def name(self) -> str:
        """Its name in measurements."""
        return self.config.name

    @property
    def request(self) -> dict[str, Any]:
        """The fields by which the measured process identifies it."""
        paths = [binary.path for binary in self.binaries]
        # The measured process launches a binary only if its code has the digest that results will name.
        codes = [binary.resources.code_sha256 for binary in self.binaries]
        said = {"config": self.name, "binaries": paths, "codes": codes, "plan": self.plan}
        return {**said, "run_time": dict(self.run_time), "same_bits": self.deterministic}


@dataclass(frozen=True)
class Unfit:
    """Why a config cannot be a candidate."""

    outcome: Outcome
    message: str


@dataclass(frozen=True)
class Dispatch:
    """One kernel execution as a profiler recorded it; times in nanoseconds of the device clock.

    `dispatch_id` numbers a process's kernels in launch order, including those that the profiler lost; None if the
    profiler does not report it.
    """

    symbol: str
    start_ns: int
    end_ns: int
    grid_size_x: int | None = None
    workgroup_size_x: int | None = None
    dispatch_id: int | None = None

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class Measurement:
    """What the measured process reports about one candidate.

    config: name of a config, or of a library call (genkern.timing.libraries)
    outcome: how the measurement ended
    time_source: the timer: rocprofv3, rocprof, cupti, cudagraph, predicted, ...
    stage: "screen" or "final"
    duration_us: median of the samples
    samples_us: the kept samples, each the time of one whole call (all kernels of the config)
    message: why there is no time, or a remark
    discarded: number of samples discarded because they were taken at a throttled clock
    usual_mhz: median clock of the compute units during the finals; None if it was not read
    watts: power at the end of the finals; None if it was not read
    took_ms: wall time that the measured process spent on it, launches included
    """

    config: str
    outcome: Outcome
    time_source: str
    stage: str = "screen"
    duration_us: float | None = None
    samples_us: tuple[float, ...] = ()
    message: str = ""
    discarded: Whole = 0
    usual_mhz: float | None = None
    watts: float | None = None
    took_ms: float | None = None


@dataclass(frozen=True)
class Check:
    """Result of checking one config (profiling/checking).

    config: name of the config or library call
    passed: True if no round found a fault
    error_ratio: share of elements outside the tolerance, as AITER's checkAllclose counts it
    worst_row_error: largest ||out_i - ref_i|| / ||ref_i|| over rows i
    problem_size: the size that ran (a reduced one under the interpreter)
    method: "gpu", "interpreter", ..., or NOT_CHECKED if there was no answer and nothing is known of the output
    message: the first fault and its position
    lost: how the process that was to answer ended, or UNCHECKED if it had not enough memory
    stand_in: type, by genkern's name, that replaced the type of A and B: the interpreter does not multiply bf16
    rounds: rounds that passed: "exact" integers, "layout" (slices of larger matrices), "random", "rows"
    row_bits: digests of the rows that are the same for all M (genkern.profiling.same_bits), if round "rows" ran
    """

    config: str
    passed: bool
    error_ratio: float
    worst_row_error: float
    problem_size: str
    method: str
    message: str = ""
    lost: Outcome | None = None
    stand_in: str = ""
    rounds: tuple[str, ...] = ()
    row_bits: str = ""

    @property
    def how(self) -> str:
        """The method with its restriction: `gpu`, `interpreter with fp16 operands`."""
        return self.method + (f" with {self.stand_in} operands" if self.stand_in else "")
