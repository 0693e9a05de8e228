"""Makes a GemmProblem from one entry of a size list or a results file.

Precedence: the entry, then the command line (GemmDefaults), then genkern's own default.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from genkern.decoding import shown
from genkern.errors import InputError
from genkern.files.format_in_names import NOTHING_SAID, StatedFormat
from genkern.gemm.dtypes import DTYPES, parse_dtype
from genkern.gemm.problem import ACTIVATIONS, DEFAULT_OP, MAX_DIMENSION, GemmProblem, Own
from genkern.ops.accumulate import ACCUMULATE, FULL, on_arch
from genkern.ops.fields import fields_of, parse_own
from genkern.ops.op import Op, get_op, op_by_type, op_names, refusal

SIZE_KEYS = ("M", "N", "K", "rowMajorA", "rowMajorB", "op", "dtype_a", "dtype_b", "dtype_c", "bias", "activation")


@dataclass(frozen=True)
class GemmDefaults:
    """The command line's values for every size that does not give its own; None if the command line gives none."""

    op: str | None = None
    dtype_a: str | None = None
    dtype_b: str | None = None
    dtype_c: str | None = None
    row_major_a: bool = True
    row_major_b: bool = False
    bias: bool = False
    activation: str = "none"
    own: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class SizeItem:
    """One entry of a size list.

    line: number of its line
    values: values by the keys of SIZE_KEYS
    untyped: start of the note for an entry that names no types
    untyped_advice: end of that note
    said: the number format that other columns, or the kernel's name, state
    said_where: what states `said`
    notes: notes about this entry
    file_notes: notes about the whole file
    meant: for an op, the values that entries without types imply in this kind of file
    """

    line: int
    values: Mapping[str, object]
    untyped: str
    untyped_advice: str = ""
    said: StatedFormat = NOTHING_SAID
    said_where: str = ""
    notes: tuple[str, ...] = ()
    file_notes: tuple[str, ...] = ()
    meant: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """A problem, and notes for the user about how it was derived; equal causes give equal notes."""

    problem: GemmProblem
    notes: tuple[str, ...]


def resolve(values: Mapping[str, object], defaults: GemmDefaults, arch: str | None, *, tuned_on: str = "") -> Resolved:
    """Make a problem from the values of one entry, by the keys of SIZE_KEYS and own_keys(); M, N and K are required.

    With an `arch` the entry is a size to tune: an fp8 encoding that the target does not compute in is replaced by the
    target's own, with a note. Without one it is a result: the encoding stays as it is named, and the format's own
    fields come from the entry alone, not from `defaults`. `tuned_on` is the architecture that a result names, which
    must be able to compute it; if it is "" or unknown, some known architecture must.

    Raises InputError naming the key, without file and line, which the caller adds.
    """
    for key in ("M", "N", "K"):
        if key not in values:
            raise InputError(f"{key} is missing; a size needs M, N and K")
    types = _types_of(values, defaults, arch)
    problem = GemmProblem(
        M=_dimension("M", values["M"]),
        N=_dimension("N", values["N"]),
        K=_dimension("K", values["K"]),
        op=types.op.name,
        dtype_a=types.a,
        dtype_b=types.b,
        dtype_c=types.c,
        row_major_a=_row_major("rowMajorA", values, defaults.row_major_a),
        row_major_b=_row_major("rowMajorB", values, defaults.row_major_b),
        bias=_flag("bias", values, defaults.bias),
        activation=_activation(values, defaults.activation),
        own=_own(types.op, values, defaults.own if arch is not None else ()),
    )
    notes = list(types.notes)
    if arch is not None:
        notes += _unused(types.op, defaults.own)
    if reason := types.op.refuse(problem, arch) if arch is not None else refusal(problem, tuned_on):
        raise InputError(reason)
    if arch is not None and (plain := on_arch(problem, arch)) != problem:
        notes.append(f"{arch} adds up products of fp8 in float32: {ACCUMULATE} = {FULL} is what it does anyway")
        problem = plain
    return Resolved(problem, tuple(notes))


def problem_of_cells(cells: Mapping[str, str]) -> GemmProblem:
    """Return the problem of the cells that `genkern.ops.fields.problem_cells` makes. Raises InputError."""
    values: dict[str, object] = {key: cells[key] for key in ("op", "dtype_a", "dtype_b", "dtype_c", "activation")}
    values |= {key: cells[key] for key in ("rowMajorA", "rowMajorB")}
    for key in ("M", "N", "K"):
        values[key] = int(cells[key]) if cells[key].isdecimal() and len(cells[key]) < 12 else cells[key]
    values["bias"] = {"True": True, "False": False}.get(cells["bias"], cells["bias"])
    values |= dict(pair.split("=", 1) for pair in cells["own"].split() if "=" in pair)
    return resolve(values, GemmDefaults(), arch=None).problem


def own_keys() -> tuple[str, ...]:
    """Return the own fields of all formats, which an entry may have in addition to SIZE_KEYS."""
    return _own_keys(op_names())


@functools.lru_cache(maxsize=16)
def _own_keys(ops: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(field.name for name in ops for field in fields_of(get_op(name).fields)))


def of_format(op: str, values: Mapping[str, object]) -> dict[str, object]:
    """Return the values without fields that only other formats have."""
    known = {field.name for field in fields_of(get_op(op).fields)}
    return {key: value for key, value in values.items() if key in known or key not in own_keys()}


def widths_of(values: Mapping[str, object]) -> str:
    """Return the entry's op, or else the plain format of its types, such as a8w8.

    AITER's names of other formats of these types begin with it.
    """
    dtype = values.get("dtype_a") or values.get("dtype_b")
    by_type = op_by_type(parse_dtype(dtype[:40], "").name).name if isinstance(dtype, str) else DEFAULT_OP
    return str(values.get("op") or by_type)


def with_result_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Return a result's values, with the default of each own field of its format that it leaves out."""
    op = values.get("op")
    fields = fields_of(get_op(op).fields) if isinstance(op, str) and op in op_names() else ()
    return {**{field.name: field.default for field in fields}, **values}


def check_defaults(defaults: GemmDefaults, arch: str | None) -> None:
    """Raise InputError if the command line's own op and types do not fit together."""
    # Every format accepts this size, whatever multiples it requires.
    resolve({"M": 1024, "N": 1024, "K": 1024}, defaults, arch)


def names_types(values: Mapping[str, object], defaults: GemmDefaults) -> bool:
    """Return True if the entry or the command line gives the types of a problem; otherwise they are assumed."""
    if values.get("op") is not None or values.get("dtype_a") is not None or values.get("dtype_b") is not None:
        return True
    return defaults.dtype_a is not None or defaults.dtype_b is not None


def refuse_unknown(keys: Collection[str], known: Collection[str], kind: str) -> None:
    """Raise InputError for the first of `keys` that is not in `known`, with the most similar known one."""
    for key in keys:
        if key not in known:
            by_fold = {name.casefold(): name for name in known}
            near = difflib.get_close_matches(key[:40].casefold(), by_fold, n=1)
            # The keys of a size are listed first.
            some = [*list(known)[: len(SIZE_KEYS)], *(["..."] if len(known) > len(SIZE_KEYS) else [])]
            hint = f"did you mean {by_fold[near[0]]}?" if near else f"use {', '.join(some)}"
            raise InputError(f"unknown {kind} {shown(key)}; {hint}")


class _Types:
    """Determines op and element types of one entry; `notes` says what was not taken as written."""

    def __init__(self, values: Mapping[str, object], defaults: GemmDefaults, arch: str | None) -> None:
        self.notes: list[str] = []
        self._arch = arch
        said = {key: self._parse(key, values.get(key)) for key in ("dtype_a", "dtype_b", "dtype_c")}
        given = {key: self._parse(key, getattr(defaults, key)) for key in said}
        said_op = _op(values.get("op")) or _op_of(said["dtype_a"] or said["dtype_b"])
        self.op = said_op or _op(defaults.op) or _op_of(given["dtype_a"] or given["dtype_b"]) or _named(DEFAULT_OP)
        # A type from the command line that does not suit an op of the file is meant for the file's other sizes.
        usable = {key: None if said_op and self._is_for_others(key, given[key]) else given[key] for key in given}
        own_a, own_b, own_c = self.op.default_dtypes(arch or "")
        a, b = (said[key] or usable[key] for key in ("dtype_a", "dtype_b"))
        if own_a == own_b:
            # A and B have the same type unless both are given.
            a, b = a or b, b or a
        self.a, self.b = a or self._own(own_a), b or self._own(own_b)
        # C has the type of A if that is the format's default; narrow inputs need a wider type.
        as_a = own_c == own_a and DTYPES[self.a].size_bytes > 1
        self.c = said["dtype_c"] or usable["dtype_c"] or (self.a if as_a else self._own(own_c))

    def _own(self, name: str) -> str:
        return parse_dtype(name, self._arch or "").name

    def _is_for_others(self, key: str, name: str | None) -> bool:
        if name is None or key == "dtype_c" or name in self.op.input_types:
            return False
        self.notes.append(f"the command line's {key} {name} does not suit {self.op.name}: it is not used there")
        return True

    def _parse(self, key: str, text: object) -> str | None:
        if text is None:
            return None
        if not isinstance(text, str) or len(text) > 40:
            raise InputError(f"{key} = {shown(text)} is not a dtype; use one of {', '.join(DTYPES)}")
        try:
            name = parse_dtype(text, self._arch or "").name
        except InputError as exc:
            raise InputError(f"{key}: {exc}") from None
        if self._arch is None or not DTYPES[name].targets_own:
            return name
        own = parse_dtype(DTYPES[name].targets_own[0], self._arch).name
        if own != name:
            note = f"{self._arch} does not compute in {name}: its own {own} is tuned instead"
            if note not in self.notes:
                self.notes.append(note)
        return own


def _types_of(values: Mapping[str, object], defaults: GemmDefaults, arch: str | None) -> _Types:
    """Return the op and types of an entry. Raises InputError."""
    said = tuple(values.get(key) for key in ("op", "dtype_a", "dtype_b", "dtype_c"))
    # Cached, since large files have few combinations. `own_keys()` is part of the key, since formats may be added in a
    # process.
    if arch is None and all(value is None or type(value) is str for value in said):
        return _types_said(said, defaults, own_keys())
    return _Types(values, defaults, arch)


@functools.lru_cache(maxsize=256)
def _types_said(said: tuple[object, ...], defaults: GemmDefaults, own: tuple[str, ...]) -> _Types:
    return _Types(dict(zip(("op", "dtype_a", "dtype_b", "dtype_c"), said, strict=True)), defaults, None)


@functools.lru_cache(maxsize=64)
def _named(name: str) -> Op:
    return get_op(name)


def _op(value: object) -> Op | None:
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 40:
        raise InputError(f"op = {shown(value)} is unknown; use one of {', '.join(op_names())}")
    return _named(value)


def _op_of(dtype: str | None) -> Op | None:
    return None if dtype is None else op_by_type(dtype)


def _own(op: Op, values: Mapping[str, object], defaults: tuple[tuple[str, object], ...]) -> Own:
    said = {key: values[key] for key in own_keys() if key in values}
    known = {field.name for field in fields_of(op.fields)}
    if foreign := next((key for key in said if key not in known), None):
        raise InputError(f"{foreign} is not a field of {op.name}; drop it, or name the op that it belongs to")
    return parse_own(op.fields, {**dict(defaults), **said})


def _unused(op: Op, own: tuple[tuple[str, object], ...]) -> list[str]:
    known = {field.name for field in fields_of(op.fields)}
    unknown = (name for name, _ in own if name not in known)
    return [f"the command line's {name} is not a field of {op.name}: it is not used there" for name in unknown]


def _dimension(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DIMENSION:
        raise InputError(f"{key} = {shown(value)} is not a size; write a whole number from 1 to {MAX_DIMENSION}")
    return value


def _row_major(key: str, values: Mapping[str, object], default: bool) -> bool:
    if key not in values:
        return default
    value = values[key]
    if value not in ("T", "N"):
        raise InputError(f"{key} = {shown(value)} is not a layout; write 'T' (row-major) or 'N' (column-major)")
    return value == "T"


def _flag(key: str, values: Mapping[str, object], default: bool) -> bool:
    value = values.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} = {shown(value)} is not true or false")
    return value


def _activation(values: Mapping[str, object], default: str) -> str:
    value = values.get("activation", default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise InputError(
            f"activation = {shown(value)} is unknown; write {', '.join(ACTIVATIONS[:-1])} or {ACTIVATIONS[-1]}"
        )
    return value
