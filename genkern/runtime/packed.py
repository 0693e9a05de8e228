"""The records of a bundle and their JSON: winners, calls with launch plans, binaries, times and their sources."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from genkern.errors import InputError, ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.operand import Operand
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import INT32, GemmProblem
from genkern.gemm.records import CHOICES, PREDICTED
from genkern.kernels.plan import LaunchPlan
from genkern.timing.libraries import is_call
from genkern.timing.standing import PROVED

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,250}")
_TEXTS = ("arch", "device", "config", "choice", "vendor", "time_source", "check", "code")
# CUDA's limits: bytes of a kernel's parameter, threads of a program; shared memory with room for later GPUs.
_MOST_PARAMETERS, _MOST_THREADS, _MOST_SHARED = 512, 1024, 2**20
# Largest number of compute units (streaming multiprocessors) of a device.
_MOST_UNITS = 2**16
# Largest number of M for which a call lists a proof.
_MOST_PROVED = 64


@dataclass(frozen=True)
class Encoding:
    """How a binary expects one TMA descriptor to be encoded, in the numbers of cuTensorMapEncodeTiled.

    element_type: CUtensorMapDataType.
    element_bytes: bytes per element.
    box: rows and columns of the box; the contiguous dimension is last.
    swizzle: CUtensorMapSwizzle.
    """

    element_type: int
    element_bytes: int
    box: tuple[int, int]
    swizzle: int


@dataclass(frozen=True)
class PackedBinary:
    """One compiled kernel, with what a launch must know in addition to the launch plan.

    sha256: digest of its file.
    symbol: the kernel's name in the file.
    threads: threads per program.
    shared_bytes: dynamic shared memory (LDS) per program, in bytes.
    parameter_bytes: size of each parameter as the binary declares it, in bytes.
    encodings: how its TMA descriptors are encoded, in their order.
    """

    sha256: str
    symbol: str
    threads: int
    shared_bytes: int
    parameter_bytes: tuple[int, ...]
    encodings: tuple[Encoding, ...] = ()


@dataclass(frozen=True)
class PackedCall:
    """How a winner is launched for a range of M.

    least_m, most_m: the smallest and the largest M that it serves.
    plan: the launch plan.
    binaries: the sha256 of a binary for each launch of the plan.
    code: digest of the machine code of the binaries (genkern.gemm.records.code_digest).
    proved: the M, in ascending order, for which its output was proved right on the winner's device, launched as it is
        packed (genkern.packing.proof).
    sums: the order of sums along K (genkern.kernels.contract.sums); "" if unknown. A row of A has the same bits in all
        calls with the same order.
    """

    least_m: int
    most_m: int
    plan: LaunchPlan
    binaries: tuple[str, ...]
    code: str
    proved: tuple[int, ...] = ()
    sums: str = ""

    def serves(self, m: int) -> bool:
        """Return True if the call can be launched for M: it is in the range, and kernels' assumptions about M hold."""
        return self.least_m <= m <= self.most_m and self.plan.keeps_promises(m)

    @property
    def is_proved(self) -> bool:
        """True if it was proved at both ends of its range of M."""
        return self.proved[:1] == (self.least_m,) and self.proved[-1:] == (self.most_m,)


@dataclass(frozen=True)
class PackedOperand:
    """How a winner's kernels read an operand of the format; fields as in `genkern.gemm.operand.Operand`."""

    name: str
    dtype: str
    row_major: bool
    packed: int

    @classmethod
    def of(cls, operand: Operand) -> PackedOperand:
        return cls(operand.name, operand.dtype, operand.row_major, operand.packed)

    def __str__(self) -> str:
        more = f", {self.packed} in one" if self.packed > 1 else ""
        return f"{self.name} {self.dtype}{more}, {'row' if self.row_major else 'column'}-major"


@dataclass(frozen=True)
class PackedWinner:
    """One row of results: what wins `problem` on a device, its times, and how it is called.

    problem: the problem that was tuned.
    arch, device, compute_units: the device on which it was tuned.
    config: the name of the config.
    choice: "config" if the config won (see CHOICES); else the library serves the problem, and `calls` serve other M.
    vendor: name of the library's best call (genkern.timing.libraries); "" if unknown.
    time_us, library_us, torch_us: microseconds per call of the config, of the library's best call and of PyTorch's own.
    time_source: how the times were measured.
    check: how its output was proved right.
    code: digest of the machine code that was measured.
    versions: versions of the software that measured it.
    calls: how it is called; the first call is for the problem's own M.
    operands: the operands of the format when the winner was packed.
    deterministic: True if two runs give equal bits.
    batch_invariant: the order of sums that all calls of this winner, and the winners of the same problem with other M,
        have in common. The library's algorithm, if it won, has this order for its M. "" if the winner was chosen by
        time alone.
    """

    problem: GemmProblem
    arch: str
    device: str
    compute_units: int
    config: str
    choice: str
    vendor: str
    time_us: float | None
    library_us: float | None
    torch_us: float | None
    time_source: str
    check: str
    code: str
    versions: tuple[tuple[str, str], ...]
    calls: tuple[PackedCall, ...]
    operands: tuple[PackedOperand, ...]
    deterministic: bool
    batch_invariant: str = ""

    @property
    def is_predicted(self) -> bool:
        """True if the cost model chose it and it was never measured."""
        return self.time_source == PREDICTED

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
        return m == self.problem.M and self.check == PROVED and self.code != "" and self.code == call.code


@dataclass(frozen=True)
class Contents:
    """Everything in a bundle: its winners, and its binaries by sha256.

    `row_kernels` maps architecture and name of each row kernel (genkern.runtime.routed.row_kernels) to its binary's
    sha256; `proved_rows` are the keys of the row kernels that were proved.
    """

    winners: tuple[PackedWinner, ...]
    binaries: Mapping[str, PackedBinary]
    row_kernels: Mapping[tuple[str, str], str] = field(default_factory=dict)
    proved_rows: frozenset[tuple[str, str]] = frozenset()

    @property
    def proofs(self) -> tuple[int, int]:
        """Two numbers: calls and row kernels that were proved for every M they serve, and all calls and row kernels."""
        calls = [
            call.is_proved or (call.least_m == call.most_m and winner.is_proved(call, call.least_m))
            for winner in self.winners
            for call in winner.calls
        ]
        return sum(calls) + len(self.proved_rows), len(calls) + len(self.row_kernels)


def joined(one: Contents, other: Contents) -> Contents:
    """Return the contents of both. Where they differ about a binary or row kernel, those of `one` are kept."""
    return Contents(
        (*one.winners, *other.winners),
        {**other.binaries, **one.binaries},
        {**other.row_kernels, **one.row_kernels},
        one.proved_rows | (other.proved_rows - one.row_kernels.keys()),
    )


def part_of(contents: Contents, winners: tuple[PackedWinner, ...]) -> Contents:
    """Return the contents reduced to these winners: their binaries, and the row kernels of their architectures."""
    archs = {winner.arch for winner in winners}
    beside = {key: sha256 for key, sha256 in contents.row_kernels.items() if key[0] in archs}
    used = {sha256 for winner in winners for call in winner.calls for sha256 in call.binaries} | {*beside.values()}
    binaries = {sha256: binary for sha256, binary in contents.binaries.items() if sha256 in used}
    return Contents(winners, binaries, beside, contents.proved_rows & beside.keys())


def to_data(contents: Contents) -> dict[str, Any]:
    """Return the contents as data that json can write."""
    beside = [[*key, sha256] for key, sha256 in sorted(contents.row_kernels.items())]
    proved = sorted(map(list, contents.proved_rows))
    return {
        # Keys are left out if they are empty, so that bundles without row kernels or their proofs keep the bytes of
        # older releases.
        **({"row_kernels": beside} if beside else {}),
        **({"proved_rows": proved} if proved else {}),
        "binaries": {sha256: asdict(binary) for sha256, binary in sorted(contents.binaries.items())},
        "winners": [_winner_data(winner) for winner in contents.winners],
    }


def _winner_data(winner: PackedWinner) -> dict[str, Any]:
    values = {field.name: getattr(winner, field.name) for field in fields(winner)}
    calls = [
        {
            "least_m": call.least_m,
            "most_m": call.most_m,
            "plan": json.loads(call.plan.to_json()),
            "binaries": list(call.binaries),
            "code": call.code,
            # Left out if empty, as in bundles of older releases.
            **({"proved": list(call.proved)} if call.proved else {}),
            **({"sums": call.sums} if call.sums else {}),
        }
        for call in winner.calls
    ]
    operands = [asdict(operand) for operand in winner.operands]
    more = {"versions": dict(winner.versions), "calls": calls, "operands": operands}
    if not winner.batch_invariant:
        # Left out if empty, as in bundles of older releases.
        del values["batch_invariant"]
    return {**values, "problem": asdict(winner.problem), **more}


def from_data(data: object) -> Contents:
    """Return the contents: the inverse of to_data. Raise ResultsError for any other data."""
    try:
        usual: dict[str, Any] = {"row_kernels": [], "proved_rows": []}
        values = _mapping({**usual, **data} if isinstance(data, dict) else data, Contents)
        binaries = {_text(name, _SHA256): _binary(value) for name, value in _items(values["binaries"])}
        if any(name != binary.sha256 for name, binary in binaries.items()):
            raise ResultsError("a binary has another digest than its name")
        # Winners share plans, which are the largest part of a manifest: each is parsed once.
        plans: dict[str, LaunchPlan] = {}
        winners = tuple(_winner(each, plans) for each in _list(values["winners"]))
        for winner in winners:
            for call in winner.calls:
                _require_fit(call, binaries)
        beside = [_list(entry, 3) for entry in _list(values["row_kernels"])]
        row_kernels = {(_text(arch), _text(name, _SYMBOL)): _text(sha, _SHA256) for arch, name, sha in beside}
        if not set(row_kernels.values()) <= set(binaries):
            raise ResultsError("a row kernel has no binary")
        named = [_list(entry, 2) for entry in _list(values["proved_rows"])]
        proved_rows = frozenset((_text(arch), _text(name, _SYMBOL)) for arch, name in named)
        if not proved_rows <= set(row_kernels):
            raise ResultsError("a row kernel is listed as proved, and is missing")
        return Contents(winners, binaries, row_kernels, proved_rows)
    except InputError as error:
        raise ResultsError(str(error)) from None


def _require_fit(call: PackedCall, binaries: Mapping[str, PackedBinary]) -> None:
    if len(call.binaries) != len(call.plan.launches) or not set(call.binaries) <= set(binaries):
        raise ResultsError("a call does not have one binary for each of its launches")


def _binary(data: object) -> PackedBinary:
    values = _mapping(data, PackedBinary)
    return PackedBinary(
        _text(values["sha256"], _SHA256),
        _text(values["symbol"], _SYMBOL),
        _number(values["threads"], 1, _MOST_THREADS),
        _number(values["shared_bytes"], 0, _MOST_SHARED),
        tuple(_number(size, 1, _MOST_PARAMETERS) for size in _list(values["parameter_bytes"])),
        tuple(map(_encoding, _list(values["encodings"]))),
    )


def _encoding(data: object) -> Encoding:
    values = _mapping(data, Encoding)
    rows, columns = (_number(size, 1, 256) for size in _list(values["box"], 2))
    numbers = {name: _number(values[name], 0, 32) for name in ("element_type", "element_bytes", "swizzle")}
    return Encoding(box=(rows, columns), **numbers)


def _call(data: object, plans: dict[str, LaunchPlan]) -> PackedCall:
    values = _mapping({"proved": [], "sums": "", **data} if isinstance(data, dict) else data, PackedCall)
    least = _number(values["least_m"], 1, INT32)
    binaries = tuple(_text(name, _SHA256) for name in _list(values["binaries"]))
    if (plan := plans.get(text := json.dumps(values["plan"]))) is None:
        plan = plans[text] = LaunchPlan.from_data(values["plan"])
        if open_names := plan.hangs_on.intersection(PARAMETERS.run_time):
            raise ResultsError(f"a call's plan has no value for {', '.join(sorted(open_names))}")
        # For all M and devices, not only for those of this call: calls share plans.
        plan.require_computable({"M": (1, INT32), "units": (1, _MOST_UNITS)})
    most, listed = _number(values["most_m"], least, INT32), _list(values["proved"])
    proved = tuple(_number(m, least, most) for m in listed[:_MOST_PROVED])
    if len(listed) > _MOST_PROVED or list(proved) != sorted({*proved}):
        raise ResultsError(
            f"{str(listed)[:60]} is no ascending list of up to {_MOST_PROVED} M for which a call was proved"
        )
    # A proof belongs to machine code: without the code's digest nothing says that this code was proved.
    code = _text(values["code"])
    return PackedCall(least, most, plan, binaries, code, proved if code else (), _text(values["sums"]))


def _winner(data: object, plans: dict[str, LaunchPlan]) -> PackedWinner:
    # Bundles of older releases lack these fields.
    usual = {"torch_us": None, "batch_invariant": ""}
    values = _mapping({**usual, **data} if isinstance(data, dict) else data, PackedWinner)
    if values["choice"] not in CHOICES:
        raise ResultsError(f"a winner's choice is {str(values['choice'])[:40]!r}, not one of {', '.join(CHOICES)}")
    calls = tuple(_call(each, plans) for each in _list(values["calls"]))
    texts = {name: _text(values[name]) for name in _TEXTS}
    if texts["vendor"] and not is_call(texts["vendor"]):
        raise ResultsError(f"{texts['vendor'][:40]!r} is not the name of a library call")
    sums = _text(values["batch_invariant"])
    if sums and any(call.sums != sums for call in calls):
        raise ResultsError(
            f"a winner has the order of sums {sums[:60]!r}, and one of its calls has another: it is not batch-invariant"
        )
    return PackedWinner(
        problem=_problem(values["problem"]),
        compute_units=_number(values["compute_units"], 0, _MOST_UNITS),
        time_us=_time(values["time_us"]),
        library_us=_time(values["library_us"]),
        torch_us=_time(values["torch_us"]),
        versions=tuple(sorted((_text(name), _text(version)) for name, version in _items(values["versions"]))),
        calls=calls,
        operands=tuple(map(_operand, _list(values["operands"]))),
        deterministic=_flag("deterministic", values["deterministic"]),
        batch_invariant=sums,
        **texts,
    )


def _operand(data: object) -> PackedOperand:
    values = _mapping(data, PackedOperand)
    name, dtype = _text(values["name"], _SYMBOL), _dtype("an operand's dtype", values["dtype"])
    return PackedOperand(name, dtype, _flag("row_major", values["row_major"]), _number(values["packed"], 1, 64))


def _problem(data: object) -> GemmProblem:
    values = _mapping(data, GemmProblem)
    for name in ("dtype_a", "dtype_b", "dtype_c"):
        _dtype(name, values[name])
    for name in ("row_major_a", "row_major_b", "bias"):
        _flag(name, values[name])
    own = tuple((_text(name), value) for name, value in (_list(pair, 2) for pair in _list(values["own"])))
    return GemmProblem(**{**values, "op": _text(values["op"], _SYMBOL), "own": own})


def _dtype(name: str, data: object) -> str:
    if not isinstance(data, str) or data not in DTYPES:
        raise ResultsError(f"{name} is {str(data)[:40]!r}, which is not an element type")
    return data


def _flag(name: str, data: object) -> bool:
    if not isinstance(data, bool):
        raise ResultsError(f"{name} is {str(data)[:40]!r}, neither true nor false")
    return data


def _mapping(data: object, kind: type) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    if not isinstance(data, dict) or set(data) != names:
        raise ResultsError(f"{str(data)[:60]!r} is no {kind.__name__}: its fields are not {', '.join(names)}")
    return data


def _items(data: object) -> list[tuple[Any, Any]]:
    if not isinstance(data, dict):
        raise ResultsError(f"{str(data)[:60]!r} is no mapping")
    return list(data.items())


def _list(data: object, count: int | None = None) -> list[Any]:
    if not isinstance(data, list) or (count is not None and len(data) != count):
        raise ResultsError(f"{str(data)[:60]!r} is no list" + (f" of {count}" if count else ""))
    return data


def _text(data: object, form: re.Pattern[str] | None = None) -> str:
    if not isinstance(data, str) or len(data) > 300 or not (form.fullmatch(data) if form else data.isprintable()):
        raise ResultsError(f"{str(data)[:60]!r} is no {'name' if form else 'printable text'}")
    return data


def _number(data: object, least: int, most: int) -> int:
    if isinstance(data, bool) or not isinstance(data, int) or not least <= data <= most:
        raise ResultsError(f"{str(data)[:60]!r} is no whole number from {least} to {most}")
    return data


def _time(data: object) -> float | None:
    if data is None:
        return None
    if isinstance(data, bool) or not isinstance(data, (int, float)) or not 0 < data < math.inf:
        raise ResultsError(f"{str(data)[:60]!r} is no time in microseconds")
    return float(data)
