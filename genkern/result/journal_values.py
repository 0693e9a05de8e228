"""The form of a result in a journal: the value of a line about a winner, without its problem (JSON)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from genkern.decoding import decode, shown
from genkern.errors import InputError
from genkern.gemm.config import Config
from genkern.gemm.problem import GemmProblem
from genkern.gemm.records import Check
from genkern.result.result import Proof, Result, require_sound, versions_of

# Fields that a journal does not keep: its line has the problem's number, and a run's results have no package, no row
# and the order of sums of their config.
_NOT_KEPT = frozenset({"problem", "package", "line", "kernel_name", "library", "bpreshuffle", "typed", "sums"})
_KEPT = tuple(field.name for field in fields(Result) if field.name not in _NOT_KEPT)
_PROOF = tuple(field.name for field in fields(Proof))
_CHECK = frozenset(field.name for field in fields(Check))


def values_of(result: Result) -> dict[str, Any]:
    """Return the values of a run's result without its problem."""
    values = {name: getattr(result, name) for name in _KEPT}
    return values | {"config": result.known_config.name, "check": result.check and asdict(result.check)}


def result_of(values: Mapping[str, Any], problem: GemmProblem) -> Result:
    """Return the result of `problem` with these values. Raises InputError."""
    found = dict(values)
    if unknown := found.keys() - set(_KEPT):
        raise InputError(f"{shown(min(unknown))} is not a field of a winner")
    if (check := found.get("check")) is not None:
        if not isinstance(check, Mapping) or not check.keys() <= _CHECK:
            raise InputError(f"check = {shown(check)} is not a mapping of the fields of a check")
        # Journals of 0.2.0 have the whole check here.
        found["check"] = {name: check[name] for name in _PROOF if name in check}
    found |= {
        "problem": problem,
        "config": Config.parse(found["config"]),
        "versions": versions_of(dict(found["versions"])),
    }
    result = decode(Result, found)
    require_sound(result, {})
    return result
