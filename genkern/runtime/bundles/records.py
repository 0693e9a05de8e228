"""Contents of a bundle, and their JSON: results with their calls (genkern.result.manifest), and binaries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from msgspec import Meta

from genkern.decoding import Sha256, Symbol, Text, decode
from genkern.errors import InputError, ResultsError
from genkern.kernels.plan import LaunchPlan
from genkern.result.manifest import result_of, values_of
from genkern.result.package import PackedCall
from genkern.result.result import Result


def _numbers(least: int, most: int) -> Meta:
    return Meta(ge=least, le=most, description=f"a whole number from {least} to {most}")


# CUDA's limits: bytes of a kernel's parameter, threads of a program; shared memory with room for later GPUs.
_ParameterBytes = Annotated[int, _numbers(1, 512)]
_Threads = Annotated[int, _numbers(1, 1024)]
_SharedBytes = Annotated[int, _numbers(0, 2**20)]
_Small = Annotated[int, _numbers(0, 32)]
_BoxSide = Annotated[int, _numbers(1, 256)]


@dataclass(frozen=True)
class Encoding:
    """How a binary expects one TMA descriptor to be encoded, in the numbers of cuTensorMapEncodeTiled.

    element_type: CUtensorMapDataType.
    element_bytes: bytes per element.
    box: rows and columns of the box; the contiguous dimension is last.
    swizzle: CUtensorMapSwizzle.
    """

    element_type: _Small
    element_bytes: _Small
    box: tuple[_BoxSide, _BoxSide]
    swizzle: _Small


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

    sha256: Sha256
    symbol: Symbol
    threads: _Threads
    shared_bytes: _SharedBytes
    parameter_bytes: tuple[_ParameterBytes, ...]
    encodings: tuple[Encoding, ...] = ()


@dataclass(frozen=True)
class Contents:
    """Everything in a bundle: its winners, and its binaries by sha256.

    `row_kernels` maps architecture and name of each row kernel (genkern.runtime.routed.row_kernels) to its binary's
    sha256; `proved_rows` are the keys of the row kernels that were proved.
    """

    winners: tuple[Result, ...]
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


def part_of(contents: Contents, winners: tuple[Result, ...]) -> Contents:
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
        "winners": [values_of(winner) for winner in contents.winners],
    }


def from_data(data: object) -> Contents:
    """Return the contents: the inverse of to_data. Raise ResultsError for any other data."""
    try:
        found = decode(_Manifest, data)
        binaries = {name: _binary(value, f"binaries.{name[:12]}") for name, value in found.binaries.items()}
        if any(name != binary.sha256 for name, binary in binaries.items()):
            raise ResultsError("a binary has another digest than its name")
        # Winners share plans, which are the largest part of a manifest: each is parsed once.
        plans: dict[str, LaunchPlan] = {}
        winners = tuple(result_of(each, plans, f"winners[{n}]") for n, each in enumerate(found.winners))
        for winner in winners:
            for call in winner.calls:
                _require_fit(call, binaries)
        row_kernels = {(arch, name): sha256 for arch, name, sha256 in found.row_kernels}
        if not set(row_kernels.values()) <= set(binaries):
            raise ResultsError("a row kernel has no binary")
        proved_rows = frozenset(found.proved_rows)
        if not proved_rows <= set(row_kernels):
            raise ResultsError("a row kernel is listed as proved, and is missing")
        return Contents(winners, binaries, row_kernels, proved_rows)
    except InputError as error:
        raise ResultsError(str(error)) from None


@dataclass(frozen=True)
class _Manifest:
    """The lists of a manifest, before their entries are checked one by one."""

    binaries: dict[Sha256, Any]
    winners: list[Any]
    row_kernels: tuple[tuple[Text, Symbol, Sha256], ...] = ()
    proved_rows: tuple[tuple[Text, Symbol], ...] = ()


def _binary(data: object, at: str) -> PackedBinary:
    if isinstance(data, dict) and isinstance(data.get("encodings"), list):
        found = (decode(Encoding, each, at=f"{at}.encodings[{n}]") for n, each in enumerate(data["encodings"]))
        data = {**data, "encodings": tuple(found)}
    return decode(PackedBinary, data, at=at)


def _require_fit(call: PackedCall, binaries: Mapping[str, PackedBinary]) -> None:
    if len(call.binaries) != len(call.plan.launches) or not set(call.binaries) <= set(binaries):
        raise ResultsError("a call does not have one binary for each of its launches")
