"""`TunedRow`: one row of a results file, parsed and checked, whichever file format it came from."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from genkern.errors import InputError
from genkern.formats.flat_yaml import shown
from genkern.formats.gemm_entry import SIZE_KEYS, own_keys
from genkern.gemm.config import Config
from genkern.gemm.gpus import NOT_PRESENT, gpu_for_device
from genkern.gemm.parameter import AMD_OPTIONS, CORE, PARAMETERS, Value
from genkern.gemm.problem import INT32, GemmProblem
from genkern.gemm.records import CHOICES, PREDICTED
from genkern.kernels.catalogue import FAMILIES, values_problem
from genkern.timing.libraries import is_call

# tune_gemm's names; genkern also reads the last one by its own name, schedule_hint.
AMD_KEYS = (*(parameter.name for parameter in AMD_OPTIONS[:3]), "instruction_sched_variant")
# All keys that tune_gemm or genkern writes for one size.
RESULT_KEYS = (
    *SIZE_KEYS[:5],
    *(parameter.name for parameter in CORE),
    *AMD_KEYS,
    "schedule_hint",
    *("op", "family", "config", "dtype_a", "dtype_b", "dtype_c", "bias", "activation"),
    *("time_us", "spread_us", "samples", "time_source", "TFLOPS", "GBps"),
    *("error_ratio", "worst_row_error", "check", "arch", "device"),
    *("vendor_us", "runner_up", "runner_up_us", "versions"),
    *("choice", "interval_low_us", "interval_high_us", "discarded", "margin", "deterministic"),
    *("vendor_interval_low_us", "vendor_interval_high_us"),
    "compute_units",
    *("vendor", "torch_us", "code"),
    *("searched_share", "expected_loss", "predicted_low_us", "predicted_high_us"),
    *("source", "peer_us", "sums"),
    *("vendor_sums", "batch_invariant", "invariant_loss"),
)
LIBRARY = "genkern"
_LONGEST_SUMS = 300
_DIGEST = re.compile(r"[0-9a-f]{16}")
_REQUIRED = tuple(parameter.name for parameter in CORE if parameter.name.startswith("BLOCK_SIZE"))


def row_keys() -> tuple[str, ...]:
    """Return all keys that a row may have, except for parameters that RESULT_KEYS leaves out."""
    return tuple(dict.fromkeys((*SIZE_KEYS, *RESULT_KEYS, *own_keys())))


@dataclass(frozen=True)
class DeviceKey:
    """The device of a result. Another GPU, or another partition of a GPU, needs other kernels.

    `device` is the name that the driver reports, with NOT_PRESENT appended if times are predicted.
    """

    arch: str
    device: str
    compute_units: int

    def fits(self, arch: str | None, device: str | None, compute_units: int | None) -> bool:
        """Return True if results with these values are of this device; a missing value fits.

        AITER's results have no device name, and tune_gemm's have none of the three. Predicted times fit every device of
        the model, whatever its full name.
        """
        if arch not in (None, self.arch) or compute_units not in (None, self.compute_units):
            return False
        return device is None or same_device(device, self.device, self.arch)


@dataclass(frozen=True)
class TunedRow:
    """One row of a results file: a problem with the config chosen for it.

    Fields are None or "" if the file does not have them; fields that are not listed here are as in `Winner`.

    config: the config; None for another library's row
    duration_us: time of one call in microseconds
    time_source: the source of that time
    library: "genkern", also for tune_gemm's configs, which genkern's kernels take; or AITER's libtype
    kernel_name: name of the kernel, for another library's row
    bpreshuffle: whether the weights are shuffled, so that the row is of another format than `problem`
    typed: False if the types of `problem` are assumed
    error_ratio: share of output elements outside the tolerance, from 0 to 1
    vendor: the library's best call (genkern.timing.libraries); "" in old rows, which have PyTorch's time
    vendor_us: time of that call in the same run
    torch_us: time of PyTorch's own call
    interval_us: 95 % interval of `duration_us`, low and high
    choice: what a dispatcher should use (CHOICES): the config if "config", else the library; old rows also have
        "vendor" for ties
    sums: the order of sums of the config (genkern.kernels.contract.sums)
    check: how the output was checked
    line: number of the row's line in the file, from 1; it does not count when rows are compared
    """

    problem: GemmProblem
    config: Config | None
    duration_us: float | None = None
    arch: str | None = None
    device: str | None = None
    time_source: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    error_ratio: float | None = None
    spread_us: float | None = None
    vendor_us: float | None = None
    choice: str = "config"
    interval_us: tuple[float, float] | None = None
    vendor_interval_us: tuple[float, float] | None = None
    compute_units: int | None = None
    library: str = LIBRARY
    kernel_name: str = ""
    bpreshuffle: bool = False
    typed: bool = True
    samples: int | None = None
    discarded: int | None = None
    runner_up: str = ""
    runner_up_us: float | None = None
    margin: float | None = None
    check: str = ""
    vendor: str = ""
    torch_us: float | None = None
    code: str = ""
    searched_share: float | None = None
    expected_loss: float | None = None
    source: str = ""
    peer_us: Mapping[Config, float] = field(default_factory=dict, hash=False)
    sums: str = ""
    vendor_sums: str = ""
    batch_invariant: bool = False
    invariant_loss: float | None = None
    predicted_interval_us: tuple[float, float] | None = None
    line: int = field(default=0, compare=False)

    @property
    def is_genkerns(self) -> bool:
        """True if genkern has the kernel: a config of its own, or of tune_gemm, for the problem as it stands."""
        return self.config is not None and not self.bpreshuffle

    @property
    def predicted(self) -> bool | None:
        """True if the time is a prediction; None if its source is unknown."""
        return None if self.time_source is None else self.time_source == PREDICTED

    @property
    def measured(self) -> bool:
        """True if the time was measured. Rows of tune_gemm and other libraries have no source, but all their times are
        measured."""
        return self.duration_us is not None and self.time_source != PREDICTED

    def is_of(self, key: DeviceKey) -> bool:
        """Return True if the row is of that device; values that the row lacks fit (`DeviceKey.fits`)."""
        return key.fits(self.arch, self.device, self.compute_units)


def same_device(one: str, other: str, arch: str) -> bool:
    """Return True if both names are of one device of `arch`; if one is a predicted device, the model decides."""
    if one == other:
        return True
    if not (one + other).count(NOT_PRESENT):
        return False
    models = [gpu_for_device(name.removesuffix(NOT_PRESENT), arch).name for name in (one, other)]
    return models[0] == models[1]


def config_of(values: Mapping[str, object]) -> Config:
    """Build the config of one entry; without `family` it is tune_gemm's kernel, "tiled".

    Raises InputError (without the place) if a value is missing or out of range, or if the entry's `config` name
    disagrees with its values.
    """
    family = _word("family", values.get("family", "tiled"))
    if family not in FAMILIES:
        raise InputError(
            f"family {shown(family)} is unknown; use one of {', '.join(FAMILIES)}, or, if genkern 0.1.0 wrote this "
            "line, remove it and tune its size again"
        )
    given = {**values, "schedule_hint": values.get("schedule_hint", values.get("instruction_sched_variant"))}
    parts: dict[str, Value] = {}
    for name, parameter in PARAMETERS.by_name.items():
        value = given.get(name)
        if name not in given or (value in (None, "") and parameter.neutral is not None):
            if name in _REQUIRED:
                raise InputError(f"{name} is missing; a result needs {', '.join(_REQUIRED)}")
        elif parameter.problem(value):
            raise InputError(f"{name} = {shown(value)} is not usable; write {parameter.said}")
        else:
            parts[name] = value  # type: ignore[assignment]
    config = Config(family, **parts)  # type: ignore[arg-type]
    if problem := values_problem(config):
        raise InputError(problem.replace(": ", " = ", 1))
    said = values.get("config")
    if said is not None and said != config.name:
        raise InputError(f"config is {shown(said)} but its values make {config.name}; correct one or drop config")
    return config


def parse_config(name: str) -> Config:
    """Return the config of this name, checked like `config_of`. Raises InputError if the name is invalid."""
    if len(name) > 200:
        raise InputError(f"{shown(name)} is too long for the name of a config")
    config = Config.parse(name)
    return config_of({"family": config.family, **config.values})


def positive(key: str, values: Mapping[str, object], or_zero: bool = False) -> float | None:
    """Return a number, such as a time in microseconds, or None if absent.

    Raises InputError unless it is finite and above zero.

    With `or_zero`, zero is valid too.
    """
    value = values.get(key)
    if value is None or (type(value) is float and 0.0 < value < math.inf):
        return value
    value = _number(key, values)
    if value is not None and (value < 0 or (value == 0 and not or_zero)):
        raise InputError(f"{key} = {shown(value)} is not above zero")
    return value


def ratio(key: str, values: Mapping[str, object]) -> float | None:
    """Return a share from 0 to 1, or None if absent. Raises InputError if it is invalid."""
    value = _number(key, values)
    if value is not None and not 0 <= value <= 1:
        raise InputError(f"{key} = {shown(value)} is not a share from 0 to 1")
    return value


def interval(stem: str, values: Mapping[str, object]) -> tuple[float, float] | None:
    """Return (`<stem>_low_us`, `<stem>_high_us`), or None if both are absent. Raises InputError if they are invalid."""
    low, high = positive(f"{stem}_low_us", values), positive(f"{stem}_high_us", values)
    if low is None and high is None:
        return None
    if low is None or high is None or low > high:
        raise InputError(f"{stem}_low_us = {low} and {stem}_high_us = {high} are not an interval; correct or drop both")
    return low, high


def choice_of(values: Mapping[str, object]) -> str:
    """Return one of CHOICES; "config" if absent. Raises InputError if it is invalid."""
    value = values.get("choice")
    if value is None:
        return CHOICES[0]
    if value not in CHOICES:
        raise InputError(f"choice = {shown(value)} is not usable; write {', '.join(CHOICES[:-1])} or {CHOICES[-1]}")
    return str(value)


def peer_times(values: Mapping[str, object]) -> dict[Config, float]:
    """Return the times of configs that other programs' kernels can run, by config. Raises InputError if they are
    invalid."""
    value = values.get("peer_us", {})
    if not isinstance(value, Mapping):
        raise InputError("peer_us is not a mapping of configs to microseconds; drop it")
    times = {name: positive(name, value) for name in value}
    return {parse_config(name): us for name, us in times.items() if us is not None}


def digest_of(key: str, values: Mapping[str, object]) -> str:
    """Return a digest of 16 digits, of machine code or its source; "" if absent. Raises InputError if it is invalid."""
    value = str(values.get(key) or "")
    if value and not _DIGEST.fullmatch(value):
        raise InputError(f"{key} = {shown(value)} is not a digest of 16 hexadecimal digits; drop it")
    return value


def sums_said(values: Mapping[str, object], key: str = "sums") -> str:
    """Return an order of sums, or "" if absent. Raises InputError unless it is a line of printable ASCII."""
    value = text_of(key, values) or ""
    if not (value.isascii() and value.isprintable() and len(value) <= _LONGEST_SUMS):
        raise InputError(f"{key} = {shown(value)} is not an order of sums; drop it")
    return value


def invariant_said(values: Mapping[str, object]) -> bool:
    """Return the row's `batch_invariant`. Raises InputError if it is True without an order of sums."""
    value = values.get("batch_invariant")
    if value is None or value is False:
        return False
    if value is not True:
        raise InputError(f"batch_invariant = {shown(value)} is not true or false")
    if not sums_said(values):
        raise InputError("batch_invariant is true without sums, the order that it is about; tune its sizes again")
    return True


def vendor_of(values: Mapping[str, object]) -> str:
    """Return the library's call, or "" if absent. Raises InputError if it is not a call of a library."""
    value = values.get("vendor")
    if value is None:
        return ""
    if not isinstance(value, str) or not _is_call(value):
        raise InputError(f"vendor = {shown(value)} is not a call of a library; write torch, or drop it")
    return value


# Cached, since the rows of a file have few different calls.
_is_call = functools.lru_cache(maxsize=4096)(is_call)


def text_of(key: str, values: Mapping[str, object]) -> str | None:
    """Return a text, or None if absent. Raises InputError if it is not text."""
    value = values.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{key} = {shown(value)} is not text; put it in quotes")
    return value


def whole(key: str, values: Mapping[str, object], least: int = 0) -> int | None:
    """Return a whole number from `least`, or None if absent. Raises InputError if it is invalid."""
    value = values.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not least <= value < INT32):
        raise InputError(f"{key} = {shown(value)} is not a whole number from {least}")
    return value


def _number(key: str, values: Mapping[str, object]) -> float | None:
    value = values.get(key)
    if value is None or (type(value) is float and math.isfinite(value)):
        return value
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"{key} = {shown(value)} is not a finite number")
    return number


def _word(key: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,39}", value):
        raise InputError(f"{key} = {shown(value)} is not a name of letters, digits and underscores")
    return value
