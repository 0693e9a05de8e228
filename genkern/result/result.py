"""`Result`: what tuning found for one problem on one device, wherever it is kept.

A run makes results, a results file has one in each row, a journal one in each line about a winner, and a bundle one
for each winner that it packs. Parts that a place does not have are empty. genkern.result.row, .journal_values and
.manifest read and write its forms in files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from genkern.decoding import PRINTABLE, Amount, Count, Digest, Flag, Microseconds, Share, Spread, Text, shown
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import CHOICES, CONFIG_WINS, PREDICTED, Check
from genkern.result.package import Package, PackedCall, PackedOperand
from genkern.timing.libraries import is_call
from genkern.timing.trust_rank import PROVED

if TYPE_CHECKING:
    from genkern.result.device import DeviceKey

    Versions = tuple[tuple[str, str], ...]
else:
    # Decoding does not check this type: `versions_of` does, and caches its check, since a large file has few different
    # values.
    Versions = Any

LIBRARY = "genkern"
# Largest number of compute units (streaming multiprocessors) of a device.
MOST_UNITS = 2**16

ChoiceName = Annotated[
    str,
    Meta(pattern=rf"\A({'|'.join(CHOICES)})\Z", description=f"{', '.join(CHOICES[:-1])} or {CHOICES[-1]}"),
]
Units = Annotated[int, Meta(ge=1, le=MOST_UNITS, description=f"a whole number from 1 to {MOST_UNITS}")]
SumsOrder = Annotated[
    str, Meta(max_length=300, pattern=r"\A[ -~]*\Z", description="an order of sums in printable ASCII; drop it")
]
Interval = tuple[Microseconds, Microseconds]


@dataclass(frozen=True, slots=True)
class Proof:
    """How the output of a result was proved right. A check (genkern.gemm.records.Check) that has passed gives it.

    method: "gpu", "interpreter", ...; "" if the file does not say
    stand_in: type that replaced the type of A and B under the interpreter; "" if none did
    error_ratio: share of elements outside the tolerance, from 0 to 1; None if unknown
    worst_row_error: largest relative error of a row, against a float32 reference; None if unknown
    problem_size: the size that ran, as MxNxK; "" if unknown
    row_bits: digests of the rows that are the same for all M (genkern.profiling.same_bits); "" if unknown
    rounds: the rounds of the check that passed, as in `Check`; empty if unknown
    """

    method: Text = ""
    stand_in: Text = ""
    error_ratio: Share | None = None
    worst_row_error: Amount | None = None
    problem_size: Text = ""
    row_bits: str = ""
    rounds: tuple[Text, ...] = ()

    @classmethod
    def of(cls, check: Check | None) -> Proof | None:
        """Return the proof that a passed check gives; None without a check."""
        if check is None:
            return None
        errors = check.error_ratio, check.worst_row_error
        return cls(check.method, check.stand_in, *errors, check.problem_size, check.row_bits, check.rounds)

    @property
    def how(self) -> str:
        """The method with its restriction: `gpu`, `interpreter with fp16 operands`."""
        return self.method + (f" with {self.stand_in} operands" if self.stand_in else "")


@dataclass(frozen=True, slots=True)
class Result:
    """What won one problem on one device, with what is needed to trust it, reproduce it and call it.

    A number is None, and a text "", if the place that the result comes from does not have it. Times are microseconds
    of one call, medians of rounds after the choice, unless a field says otherwise.

    What won
    problem: the problem that was tuned
    config: the config; None for another library's kernel, and in bundles, which keep only its name
    kernel_name: name of the kernel if `config` is None
    choice: what to call (CHOICES): the config if it is "config", else the library. Old rows have "vendor" for ties

    Device
    arch, device: architecture, and name as the driver reports it
    compute_units: number of compute units or streaming multiprocessors

    Measurement
    duration_us: time of the config, or of another library's kernel
    time_source: the timer; "predicted" for times that the model predicts
    spread_us: interquartile range of the samples
    interval_us: low and high end of the 95 % bootstrap interval of the median
    samples, discarded: number of kept samples, and of samples discarded because the clock was low
    predicted_interval_us: for a predicted time, the interval that holds 80 % of measured times; None if no recorded
        time of the GPU shows the predictor's error

    Peers, timed in the same rounds unless stated
    vendor: name of the library's best call (genkern.timing.libraries)
    vendor_us, vendor_interval_us: its time, and the 95 % interval
    torch_us: time of PyTorch's own call
    runner_up, runner_up_us: name and time of the next best config
    peer_us: screening times, by config name, of the fastest configs that other programs' kernels can run

    Search
    searched_share: share of the space's binaries that were tried, from 0 to 1
    expected_loss: how much longer the best tried config is expected to take than the best of all (0.01: 1 %)

    Order of sums
    sums: order in which the config adds along K (genkern.kernels.contract.sum_order). A run's results do not state it:
        it follows from the config
    vendor_sums: order in which `vendor` adds along K, as its bits show
    batch_invariant: all winners of problems that differ only in M, and the calls that `choice` means, have one order
    invariant_loss: how much longer the call takes than the fastest one in any order (0.01: 1 %)

    Proof and code
    check: how the output was proved right; None if it was not
    code: digest of the measured machine code (genkern.gemm.records.code_digest)
    source: digest of the program that `code` was compiled from (genkern.kernels.specs.source_digest)
    versions: versions of the software that measured it, by name

    Package
    package: how a bundle calls it; None outside bundles

    Origin, for a row of a results file
    library: "genkern", also for tune_gemm's configs, which genkern's kernels take; or AITER's libtype
    bpreshuffle: True if the weights are shuffled, so that the row is of another format than `problem`
    typed: False if the types of `problem` are assumed
    line: number of the row's line in its file, from 1; results are compared without it
    """

    problem: GemmProblem
    config: Config | None = None
    _: KW_ONLY
    kernel_name: Text = ""
    choice: ChoiceName = CONFIG_WINS
    arch: Text = ""
    device: Text = ""
    compute_units: Units | None = None
    duration_us: Microseconds | None = None
    time_source: Text = ""
    spread_us: Spread | None = None
    interval_us: Interval | None = None
    samples: Count | None = None
    discarded: Count | None = None
    predicted_interval_us: Interval | None = None
    vendor: Text = ""
    vendor_us: Microseconds | None = None
    vendor_interval_us: Interval | None = None
    torch_us: Microseconds | None = None
    runner_up: Text = ""
    runner_up_us: Microseconds | None = None
    peer_us: tuple[tuple[Text, Microseconds], ...] = ()
    searched_share: Share | None = None
    expected_loss: Amount | None = None
    sums: SumsOrder = ""
    vendor_sums: SumsOrder = ""
    batch_invariant: Flag = False
    invariant_loss: Amount | None = None
    check: Proof | None = None
    code: Digest = ""
    source: Digest = ""
    versions: Versions = ()
    package: Package | None = None
    library: Text = LIBRARY
    bpreshuffle: Flag = False
    typed: Flag = True
    line: int = field(default=0, compare=False)

    @property
    def known_config(self) -> Config:
        """`config`, for results that have one. Raises ValueError for another library's kernel."""
        if self.config is None:
            raise ValueError(f"{self.problem.name}: {self.kernel_name} is no config of genkern")
        return self.config

    @property
    def known_us(self) -> float:
        """`duration_us`, for results that have a time. Raises ValueError for others."""
        if self.duration_us is None:
            raise ValueError(f"{self.problem.name} has no time")
        return self.duration_us

    @property
    def known_units(self) -> int:
        """`compute_units`, for results that have it. Raises ValueError for others."""
        if self.compute_units is None:
            raise ValueError(f"{self.problem.name} has no number of compute units")
        return self.compute_units

    @property
    def config_name(self) -> str:
        """Name of the config, or of another library's kernel."""
        return self.kernel_name if self.config is None else self.config.name

    @property
    def margin(self) -> float | None:
        """Time of the runner-up over the winner's; slightly below 1 if a tie went to the simpler config."""
        if self.runner_up_us is None or self.duration_us is None:
            return None
        return self.runner_up_us / self.duration_us

    @property
    def peers(self) -> dict[Config, float]:
        """The times of `peer_us` by config."""
        return {Config.parse(name): us for name, us in self.peer_us}

    @property
    def proved_by(self) -> str:
        """How the output was proved right: `gpu`, `interpreter with fp16 operands`, or ""."""
        return "" if self.check is None else self.check.how

    @property
    def order(self) -> str:
        """The order of sums that the winners of all M have in common; "" if it was chosen by time alone."""
        return self.sums if self.batch_invariant else ""

    def version_of(self, name: str) -> str | None:
        """Return the version of a software, such as "triton"; None if unknown."""
        return next((version for other, version in self.versions if other == name), None)

    @property
    def is_genkerns(self) -> bool:
        """True if genkern has the kernel: a config of its own, or of tune_gemm, for the problem as it stands."""
        return self.config is not None and not self.bpreshuffle

    @property
    def is_predicted(self) -> bool:
        """True if the cost model chose it and it was never measured."""
        return self.time_source == PREDICTED

    @property
    def predicted(self) -> bool | None:
        """True if the time is a prediction; None if its source is unknown."""
        return self.is_predicted if self.time_source else None

    @property
    def measured(self) -> bool:
        """True if the time was measured. Rows of tune_gemm and other libraries have no source, but all their times are
        measured."""
        return self.duration_us is not None and not self.is_predicted

    def is_of(self, key: DeviceKey) -> bool:
        """Return True if the result is of that device; values that it lacks fit (`DeviceKey.fits`)."""
        return key.fits(self.arch, self.device, self.compute_units)

    @property
    def calls(self) -> tuple[PackedCall, ...]:
        """The calls of its package; none outside bundles."""
        return () if self.package is None else self.package.calls

    @property
    def operands(self) -> tuple[PackedOperand, ...]:
        """The operands of its package; none outside bundles."""
        return () if self.package is None else self.package.operands

    @property
    def deterministic(self) -> bool:
        """False if the package says that two runs may give different bits."""
        return self.package is None or self.package.deterministic

    def with_calls(self, calls: tuple[PackedCall, ...]) -> Result:
        """Return the result with these calls in its package."""
        return replace(self, package=replace(self.package or Package(), calls=calls))

    def call_for(self, m: int, *, only_proved: bool = False) -> PackedCall | None:
        """Return the first call that serves M; with `only_proved`, the first that was also proved for M; else None."""
        found = (call for call in self.calls if call.serves(m) and not (only_proved and not self.is_proved(call, m)))
        return next(found, None)

    def is_proved(self, call: PackedCall, m: int) -> bool:
        """Return True if the call was proved for M.

        Either it was proved for an M on both sides (or for M itself), or tuning proved the same machine code for this
        M.
        """
        if call.proved and call.proved[0] <= m <= call.proved[-1]:
            return True
        return m == self.problem.M and self.proved_by == PROVED and self.code != "" and self.code == call.code


def versions_of(values: Mapping[str, object], at: str = "versions") -> Versions:
    """Return versions by name as a record has them. Raises InputError if one of them is not printable text.

    at: place of the mapping in its file, for messages
    """
    for name, version in values.items():
        if not isinstance(version, str):
            raise InputError(f"{at}.{shown(name)[1:-1]} = {shown(version)} is not text; put it in quotes")
    return _printable(tuple(values.items()), at)


@functools.lru_cache(maxsize=1024)
def _printable(versions: Versions, at: str) -> Versions:
    for name, version in versions:
        if not re.fullmatch(PRINTABLE, name) or not re.fullmatch(PRINTABLE, version):
            raise InputError(
                f"{at}.{shown(name)[1:-1]} = {shown(version)} is not printable text of up to 300 characters"
            )
    return versions


def require_sound(result: Result, names: Mapping[str, str]) -> None:
    """Raise InputError if values of a result do not fit together. `names`: names in the file by field."""
    for name in ("interval_us", "vendor_interval_us", "predicted_interval_us"):
        pair = getattr(result, name)
        if pair is not None and pair[0] > pair[1]:
            name = names.get(name, name)
            raise InputError(f"{name} = {pair[0]} and {pair[1]} are not an interval; correct or drop both")
    if result.vendor and not _is_call(result.vendor):
        raise InputError(f"vendor = {shown(result.vendor)} is not a call of a library; write torch, or drop it")


# Cached, since the rows of a file have few different calls.
_is_call = functools.lru_cache(maxsize=4096)(is_call)
