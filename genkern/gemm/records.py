"""What happens to a candidate, as records: every one ends in exactly one outcome, with units in the field names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem

# The time source of numbers that no clock ever showed.
PREDICTED = "predicted"
# What a winner is beside the vendor library: the faster one, the slower one, or nobody can say. At a tie, too, the
# library is called: nothing is gained by another kernel, and the library is what everybody trusts.
CHOICES = CONFIG_WINS, VENDOR_WINS, TIE = "config", "vendor", "tie"
# The method of a check that could not be made.
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
        """The outcome in words: nothing was measured where the times are the predictor's."""
        return PREDICTED if self is Outcome.MEASURED and time_source == PREDICTED else self.value


@dataclass(frozen=True)
class Resources:
    """What one binary needs of the hardware; None where the binary does not say.

    `registers` counts 32-bit registers per thread (on CDNA the unified total, `accumulator_registers`
    of it AGPRs). `shared_bytes` is LDS or shared memory per workgroup. `scratch_bytes` is per thread.
    `code_sha256` is of all that the hardware executes: binaries with an equal one differ in their names only.
    `loop_*` count the instructions of a Triton kernel's main loop (genkern.farm.binary.main_loop has the kinds).
    """

    registers: int | None = None
    accumulator_registers: int | None = None
    scalar_registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    scratch_bytes: int | None = None
    code_sha256: str | None = None
    loop_instructions: int | None = None
    loop_matrix: int | None = None
    loop_fma: int | None = None
    loop_shared: int | None = None
    loop_loads: int | None = None
    loop_syncs: int | None = None


@dataclass(frozen=True)
class Binary:
    """One compiled kernel in the cache: `path` is its folder, `key` its content address.

    `compile_s` are the seconds that its compile took, None where the entry does not say.
    """

    key: str
    path: str
    symbol: str
    resources: Resources
    compile_s: float | None = None


def code_digest(codes: Sequence[str | None]) -> str:
    """16 hexadecimal digits of the machine code of a call's binaries, given the `code_sha256` of each; "" if one of
    them is not known.
    """
    return "" if None in codes or not codes else hashlib.sha256(" ".join(map(str, codes)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Candidate:
    """A config with the binaries of its kernels, ready to be measured: `plan` says how they are launched.

    That is a LaunchPlan (genkern.kernels.plan) as JSON, one text for all configs with these binaries; `run_time` has,
    by name, what it leaves to the config. Without binaries there is none. `deterministic`: two calls agree to the bit.
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
        """How the measured process is told of it."""
        paths = [binary.path for binary in self.binaries]
        # What lies there is launched only if its code is still that which results will name.
        codes = [binary.resources.code_sha256 for binary in self.binaries]
        said = {"config": self.name, "binaries": paths, "codes": codes, "plan": self.plan}
        return {**said, "run_time": dict(self.run_time), "same_bits": self.deterministic}


@dataclass(frozen=True)
class Unfit:
    """Why a config is no candidate."""

    outcome: Outcome
    message: str


@dataclass(frozen=True)
class Dispatch:
    """One kernel execution as a profiler saw it; times in nanoseconds of the device clock.

    `dispatch_id` counts a process's kernels in the order of their launches, those that the profiler lost included;
    None where the profiler does not say.
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
    """What the measured process says of one candidate.

    `samples_us` are the kept samples, each the time of one whole call (all kernels of the config); `duration_us` is
    their median. `config` is the name of a config, or of a library's call (genkern.timing.libraries). `time_source` is
    the timer: rocprofv3, rocprof, cupti, cudagraph or predicted. `stage` is "screen" or "final". `discarded` counts the
    samples that were taken at a throttled clock and are not kept. `usual_mhz` is the clock of the compute units that
    was usual while the finals ran, the median of its readings, `watts` what the device took at their end; None where
    nothing reads them. `took_ms` is the wall time that the measured process spent on it, with its launches.
    """

    config: str
    outcome: Outcome
    time_source: str
    stage: str = "screen"
    duration_us: float | None = None
    samples_us: tuple[float, ...] = ()
    message: str = ""
    discarded: int = 0
    usual_mhz: float | None = None
    watts: float | None = None
    took_ms: float | None = None


@dataclass(frozen=True)
class Check:
    """Result of checking one config; `passed` says that no round found anything (profiling/checking).

    `rounds` names those that were passed: "exact" integers, "layout" (slices of larger matrices), "random". `message`
    says what is wrong first, and where. `error_ratio` is the share of elements outside the tolerance, as AITER's
    checkAllclose counts it; `worst_row_error` is the largest ||out_i - ref_i|| / ||ref_i|| over rows i. `problem_size`
    says what was really run (a reduced size under the interpreter). Where no answer was to be had, `method` is
    NOT_CHECKED and nothing is known of the output; `lost` then says how the process ended that was to give one, if
    there was one, or that it had no memory to (UNCHECKED). `stand_in` is the type, by genkern's name, that A and B had
    instead of the problem's, where they had another: the interpreter does not multiply bf16. `row_bits` say what bits
    rows have that are the same for all M (genkern.profiling.same_bits), where they were compared: round "rows".
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
        """The method with what it did not check as it is: `gpu`, `interpreter with fp16 operands`."""
        return self.method + (f" with {self.stand_in} operands" if self.stand_in else "")


@dataclass(frozen=True)
class Winner:
    """The chosen config of one problem, with what a reader needs to trust and to reproduce it.

    All times are of rounds that chose nobody, after those that chose. `duration_us` is the median of `samples` kept
    samples (`discarded` were not), `interval_us` its 95 % bootstrap interval, `spread_us` the samples' interquartile
    range. `vendor_us` and its interval are of the best that the vendor library has, in the same rounds: the call of it
    that `vendor` names (genkern.timing.libraries), "" where nobody knows. `torch_us` is PyTorch's own call. `runner_up`
    is the next best config, checked too where winners are checked on a GPU, and `runner_up_us` its median.
    `choice` says what a dispatcher should use (CHOICES): the config where it is "config", else the library. `code` says
    which machine code was measured (`code_digest`), "" where that is not known, and `source` which program that was
    compiled from (genkern.kernels.specs.source_digest). `searched_share` is the share of the
    space's binaries that were tried, and `expected_loss` how much longer the best of these is expected to take than the
    best of all (0.01: 1 %); None where nobody says it. `peer_us` has the screening's times, in microseconds, of the
    fastest configs that other programs' kernels can run (genkern.tuning.elsewhere), by name. `vendor_sums` says in
    which order `vendor` adds up K, as bits have shown (genkern.kernels.contract.sums). `batch_invariant`: all winners
    of problems that differ in M alone add up K in one order, which the call that `choice` means has too; that costs
    `invariant_loss` of the time of the fastest call in any order (0.01: 1 %). Of a predicted time
    `predicted_interval_us` has both ends of the interval that holds 80 % of measured times; None if no time of the GPU
    tells how far predictions are off.
    """

    problem: GemmProblem
    config: Config
    duration_us: float
    spread_us: float
    samples: int
    time_source: str
    arch: str
    device: str
    versions: tuple[tuple[str, str], ...]
    check: Check | None = None
    vendor_us: float | None = None
    runner_up: str = ""
    runner_up_us: float | None = None
    interval_us: tuple[float, float] | None = None
    vendor_interval_us: tuple[float, float] | None = None
    discarded: int = 0
    choice: str = CONFIG_WINS
    vendor: str = ""
    torch_us: float | None = None
    code: str = ""
    expected_loss: float | None = None
    searched_share: float | None = None
    source: str = ""
    peer_us: tuple[tuple[str, float], ...] = ()
    vendor_sums: str = ""
    batch_invariant: bool = False
    invariant_loss: float | None = None
    predicted_interval_us: tuple[float, float] | None = None

    @property
    def margin(self) -> float | None:
        """Time of the runner-up over the winner's; slightly below 1 when a tie went to the simpler config."""
        return None if self.runner_up_us is None else self.runner_up_us / self.duration_us


Record = TypeVar("Record")
# Nothing that is counted, timed or numbered comes near, in whatever units.
_MOST = 2**63


def require_types(record: Record) -> Record:
    """The record, of a dataclass, whose values came from a file. Raises TypeError for one of another type than its
    field, and for numbers beyond 64 bits.
    """
    kind: type = type(record)
    for name, holds in _types_of(kind):
        if not holds(value := getattr(record, name)):
            raise TypeError(f"{name} = {str(value)[:40]!r} is of another type than {kind.__name__} says")
    return record


@lru_cache(maxsize=64)
def _types_of(kind: Hashable) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    return tuple((name, _holds(said)) for name, said in get_type_hints(kind).items())


def _holds(said: Any) -> Callable[[Any], bool]:
    """Whether a value is of the type that an annotation says."""
    origin, inner = get_origin(said), [_holds(each) for each in get_args(said) if each is not ...]
    if said is float:
        return lambda value: isinstance(value, float) or _is_whole(value)
    if said is int:
        return _is_whole
    if isinstance(said, type) and origin is None:
        return lambda value: isinstance(value, said)
    if origin is dict:
        return lambda value: isinstance(value, dict) and all(inner[0](k) and inner[1](v) for k, v in value.items())
    if origin is tuple and get_args(said)[-1] is ...:
        return lambda value: isinstance(value, tuple) and all(map(inner[0], value))
    if origin is tuple:
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(inner)
            and all(holds(each) for holds, each in zip(inner, value, strict=True))
        )
    return lambda value: any(holds(value) for holds in inner)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_MOST < value < _MOST
