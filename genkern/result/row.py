"""The form of a result in rows of results files: keys in YAML, columns of genkern's own in AITER's CSV.

KEYS lists the keys in the order in which they are written. The keys of the problem and the config are those of
tune_gemm (genkern.files).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from genkern.decoding import Amount, Flag, decode, shown
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import is_deterministic, sums_of
from genkern.ops.op import gb_per_s
from genkern.result.result import Result, require_sound, versions_of

# Digits of times and of shares of times after the decimal point: 0.1 ns.
_DIGITS = 4


@dataclass(frozen=True)
class Key:
    """One key of a row.

    name: the key in YAML, and the column in CSV
    path: path of the value in `Result`, such as `interval_us[0]`; "" if the value is computed from others
    of: returns the value to write; None if the row is to have no such key
    """

    name: str
    path: str
    of: Callable[[Result], object]


def _plain(name: str, path: str = "") -> Key:
    path = path or name
    return Key(name, path, lambda result: getattr(result, path) or None)


def _number(name: str, path: str = "") -> Key:
    path = path or name
    return Key(name, path, lambda result: getattr(result, path))


def _rounded(name: str, path: str = "") -> Key:
    path = path or name
    return Key(name, path, lambda result: _round(getattr(result, path)))


def _ends(stem: str, field: str) -> tuple[Key, Key]:
    def end(place: int) -> Callable[[Result], object]:
        return lambda result: None if (pair := getattr(result, field)) is None else _round(pair[place])

    return Key(f"{stem}_low_us", f"{field}[0]", end(0)), Key(f"{stem}_high_us", f"{field}[1]", end(1))


def _proved(name: str) -> Key:
    return Key(name, f"check.{name}", lambda result: None if result.check is None else getattr(result.check, name))


def _computed(name: str, of: Callable[[Result], object]) -> Key:
    return Key(name, "", of)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


KEYS = (
    _rounded("time_us", "duration_us"),
    _rounded("spread_us"),
    *_ends("interval", "interval_us"),
    _number("samples"),
    _number("discarded"),
    _plain("time_source"),
    _computed("TFLOPS", lambda result: round(result.problem.tflops(result.known_us), 3)),
    _computed("GBps", lambda result: round(gb_per_s(result.problem, result.known_us), 3)),
    _proved("error_ratio"),
    _proved("worst_row_error"),
    Key("check", "check.method", lambda result: result.proved_by or "none"),
    _plain("arch"),
    _plain("device"),
    _number("compute_units"),
    _rounded("vendor_us"),
    *_ends("vendor_interval", "vendor_interval_us"),
    _plain("vendor"),
    _rounded("torch_us"),
    _plain("code"),
    _plain("runner_up"),
    _rounded("runner_up_us"),
    _computed("margin", lambda result: _round(result.margin)),
    _plain("choice"),
    _number("searched_share"),
    _number("expected_loss"),
    *_ends("predicted", "predicted_interval_us"),
    _plain("source"),
    Key("sums", "sums", lambda result: sums_of(result.problem, result.known_config, result.arch) or None),
    _plain("vendor_sums"),
    _plain("batch_invariant"),
    _rounded("invariant_loss"),
    Key("peer_us", "peer_us", lambda result: dict(result.peer_us) or None),
    # Written only if False.
    _computed("deterministic", lambda r: None if is_deterministic(r.problem, r.known_config) else False),
    Key("versions", "versions", lambda result: dict(result.versions)),
)
NAMES = tuple(key.name for key in KEYS)
_NAME_OF = {key.path: key.name for key in KEYS if key.path} | {
    f"{key.path.partition('[')[0]}": key.name.replace("_low_us", "_low_us and _high_us")
    for key in KEYS
    if key.path.endswith("[0]")
}
# Fields of plain values by key, and fields of intervals with the keys of both ends.
_MAPPINGS = ("peer_us", "versions")
_PLAIN = {key.name: key.path for key in KEYS if key.path.isidentifier() and key.path not in _MAPPINGS}
_PAIRS = tuple(
    (low.name, high.name, low.path.removesuffix("[0]"))
    for low, high in itertools.pairwise(KEYS)
    if low.path.endswith("[0]")
)


@dataclass(frozen=True)
class _Unused:
    """Keys that are computed from others. They are not used, but an invalid value means that the file is damaged."""

    TFLOPS: Amount | None = None
    GBps: Amount | None = None
    margin: Amount | None = None
    deterministic: Flag | None = None


_UNUSED = tuple(field.name for field in fields(_Unused))


def values_of(result: Result) -> dict[str, Any]:
    """Return the result's values by key, in the order of KEYS, without keys that it has no value for.

    The result must have a config and a time.
    """
    return {key.name: value for key in KEYS if (value := key.of(result)) is not None}


def result_of(
    values: Mapping[str, object],
    problem: GemmProblem,
    config: Config | None,
    *,
    from_text: bool = False,
    **origin: object,
) -> Result:
    """Return the result of a row's values. Keys that belong to the problem or the config are ignored, and so is None.

    from_text: numbers and flags may also be text, as in CSV
    origin: fields of `Result` that are no keys

    Raises InputError (one line: key, value, what is expected) for an invalid value.
    """
    found: dict[str, object] = {
        _PLAIN[name]: value for name, value in values.items() if value is not None and name in _PLAIN
    }
    for low, high, field in _PAIRS:
        ends = values.get(low), values.get(high)
        if ends != (None, None):
            if None in ends:
                said = f"{low} = {shown(ends[0])} and {high} = {shown(ends[1])}"
                raise InputError(f"{said} are not an interval; correct or drop both")
            found[field] = ends
    if (proof := _proof_values(values)) is not None:
        found["check"] = proof
    if values.get("versions") is not None:
        found["versions"] = versions_of(dict(_pairs("versions", values["versions"], "{'triton': '3.7.0'}")))
    if values.get("peer_us") is not None:
        found["peer_us"] = _pairs("peer_us", values["peer_us"], "{CONFIG: 12.5} in microseconds")
    result = decode(
        Result,
        {**found, **origin, "problem": problem, "config": config},
        name_of=functools.partial(_name_of, found),
        from_text=from_text,
    )
    for name in _UNUSED:
        if (value := values.get(name)) is not None and not (type(value) is float and 0 <= value < math.inf):
            decode(_Unused, {name: value}, from_text=from_text)
    require_sound(result, _NAME_OF)
    if result.batch_invariant and not result.sums:
        raise InputError("batch_invariant is true without sums, the order that it is about; tune its sizes again")
    return result


def _proof_values(values: Mapping[str, object]) -> dict[str, object] | None:
    """Return the values of a row's `Proof`; None if it has none."""
    how, error_ratio, worst = (values.get(name) for name in ("check", "error_ratio", "worst_row_error"))
    if how in (None, "", "none") and error_ratio is None and worst is None:
        return None
    proof: dict[str, object] = {} if how in (None, "none") else {"method": how}
    if isinstance(how, str) and " with " in how:
        method, _, stand_in = how.partition(" with ")
        proof |= {"method": method, "stand_in": stand_in.removesuffix(" operands")}
    return proof | {"error_ratio": error_ratio, "worst_row_error": worst}


def _pairs(name: str, value: object, example: str) -> tuple[tuple[str, object], ...]:
    """Return the items of a mapping without those that have no value."""
    if not isinstance(value, Mapping):
        raise InputError(f"{name} = {shown(value)} is not a mapping such as {example}")
    return tuple((key, item) for key, item in value.items() if item is not None)


def _name_of(found: Mapping[str, Any], path: str) -> str:
    """Return the key for a path in the record; for a peer's time, the key and the config."""
    field, _, rest = path.partition("[")
    if field == "peer_us" and (place := rest.partition("]")[0]).isdigit():
        return f"{field}.{shown(found[field][int(place)][0])[1:-1]}"
    return _NAME_OF.get(path, path)
