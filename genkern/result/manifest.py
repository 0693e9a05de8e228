"""The form of a result in a bundle's manifest (JSON): names of 0.2.0, and the launch plans of its calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from genkern.decoding import decode, shown
from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import INT32, GemmProblem
from genkern.kernels.plan import LaunchPlan
from genkern.result.package import PackedCall, PackedOperand
from genkern.result.result import MOST_UNITS, Result, require_sound, versions_of

# Names in the manifest by field, in the order of the record. Fields that are not listed are not in a bundle.
_NAMES = {
    "problem": "problem",
    "arch": "arch",
    "device": "device",
    "compute_units": "compute_units",
    "kernel_name": "config",
    "choice": "choice",
    "vendor": "vendor",
    "duration_us": "time_us",
    "vendor_us": "library_us",
    "torch_us": "torch_us",
    "time_source": "time_source",
    "check": "check",
    "code": "code",
    "versions": "versions",
}
# What a manifest has besides: the parts of `Package`, and the order of sums of batch-invariant results.
_KNOWN = frozenset(_NAMES.values()) | {"calls", "operands", "deterministic", "batch_invariant"}
# Bundles of older releases lack these.
_OPTIONAL = frozenset({"torch_us", "batch_invariant"})


def values_of(result: Result) -> dict[str, Any]:
    """Return the result, which must have a package, as data that json can write."""
    values = {name: getattr(result, field) for field, name in _NAMES.items()}
    values |= {
        "problem": asdict(result.problem),
        "config": result.config_name,
        "check": result.proved_by,
        "versions": dict(result.versions),
        "calls": [_call_values(call) for call in result.calls],
        "operands": [asdict(operand) for operand in result.operands],
        "deterministic": result.deterministic,
    }
    # Left out if empty, as in bundles of older releases.
    return values | ({"batch_invariant": result.order} if result.order else {})


def _call_values(call: PackedCall) -> dict[str, Any]:
    values = {field.name: getattr(call, field.name) for field in fields(call)}
    values |= {"plan": json.loads(call.plan.to_json()), "binaries": list(call.binaries), "proved": list(call.proved)}
    return {name: value for name, value in values.items() if name not in ("proved", "sums") or value}


def result_of(data: object, plans: dict[str, LaunchPlan], at: str) -> Result:
    """Return the result of `values_of`. Raises InputError for any other data.

    plans: launch plans by their JSON. Results share plans, which are the largest part of a manifest: each is parsed
        once
    at: the result's place in the manifest, for messages
    """
    values = _mapping(data, at)
    if missing := _KNOWN - _OPTIONAL - values.keys():
        raise InputError(f"{at}.{min(missing)} is missing")
    if unknown := values.keys() - _KNOWN:
        raise InputError(f"{at}.{shown(min(unknown))} is not a field of a winner")
    package = {
        "calls": tuple(_call_of(call, plans, f"{at}.calls[{n}]") for n, call in _items(values, "calls", at)),
        "operands": tuple(_operand_of(each, f"{at}.operands[{n}]") for n, each in _items(values, "operands", at)),
        "deterministic": values["deterministic"],
    }
    sums, at_versions = values.get("batch_invariant", ""), f"{at}.versions"
    found = {field: values.get(name) for field, name in _NAMES.items()}
    result = decode(
        Result,
        {
            **found,
            "problem": _problem_of(values["problem"], f"{at}.problem"),
            "check": {"method": values["check"]} if values["check"] not in ("", "none") else None,
            "versions": tuple(sorted(versions_of(_mapping(values["versions"], at_versions), at_versions))),
            "sums": sums,
            "batch_invariant": sums != "",
            "package": package,
        },
        at=at,
        name_of=_name_of,
    )
    require_sound(result, _NAMES)
    if sums and any(call.sums != sums for call in result.calls):
        raise InputError(
            f"{at}.batch_invariant is the order of sums {shown(sums)}, and one of its calls has another: it is not "
            "batch-invariant"
        )
    return result


def _name_of(path: str) -> str:
    """Return the name in the manifest for a path in the record."""
    if path == "sums":
        return "batch_invariant"
    return _NAMES.get(path.partition(".")[0], path.removeprefix("package."))


def _call_of(data: object, plans: dict[str, LaunchPlan], at: str) -> PackedCall:
    values = _mapping(data, at)
    if "plan" not in values:
        raise InputError(f"{at}.plan is missing")
    call = decode(PackedCall, {**values, "plan": _plan_of(values["plan"], plans)}, at=at)
    if call.most_m < call.least_m:
        raise InputError(f"{at}.most_m = {call.most_m} is not an M from least_m, {call.least_m}, on")
    proved = list(call.proved)
    if proved != sorted({*proved}) or not all(call.least_m <= m <= call.most_m for m in proved):
        raise InputError(f"{at}.proved is no ascending list of M from {call.least_m} to {call.most_m}")
    # A proof belongs to machine code: without the code's digest nothing says that this code was proved.
    return call if call.code else replace(call, proved=())


def _plan_of(data: object, plans: dict[str, LaunchPlan]) -> LaunchPlan:
    if (plan := plans.get(text := json.dumps(data))) is None:
        plan = plans[text] = LaunchPlan.from_data(data)
        if open_names := plan.hangs_on.intersection(PARAMETERS.run_time):
            raise InputError(f"a call's plan has no value for {', '.join(sorted(open_names))}")
        # For all M and devices, not only for those of this call: calls share plans.
        plan.require_computable({"M": (1, INT32), "units": (1, MOST_UNITS)})
    return plan


def _operand_of(data: object, at: str) -> PackedOperand:
    operand = decode(PackedOperand, data, at=at)
    _require_dtype(operand.dtype, f"{at}.dtype")
    return operand


def _problem_of(data: object, at: str) -> GemmProblem:
    problem = decode(GemmProblem, data, at=at)
    for name in ("dtype_a", "dtype_b", "dtype_c"):
        _require_dtype(getattr(problem, name), f"{at}.{name}")
    if not problem.op.isidentifier() or len(problem.op) > 250:
        raise InputError(f"{at}.op = {shown(problem.op)} is not the name of a number format")
    return problem


def _require_dtype(dtype: str, at: str) -> None:
    if dtype not in DTYPES:
        raise InputError(f"{at} = {shown(dtype)} is not an element type")


def _mapping(data: object, at: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise InputError(f"{at} = {shown(data)} is not a mapping")
    return data


def _items(values: Mapping[str, Any], name: str, at: str) -> enumerate[Any]:
    if not isinstance(values[name], list):
        raise InputError(f"{at}.{name} = {shown(values[name])} is not a list")
    return enumerate(values[name])
