"""`LaunchPlan`: one call of a config as data, which needs neither Triton nor a generated module to be launched.

The values of a plan may depend on the device's number of units (SMs or CUs), on M if the plan serves several M, on the
operands' addresses, and, until it is `closed`, on parameters that a config sets at run time. Configs with the same
binaries share one plan. Facts about a binary (threads, shared memory, encoding of descriptors) are kept with the
binary, so that binaries which are launched alike share a plan, too (genkern.kernels.specs.plan_text).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from genkern.errors import InputError
from genkern.gemm.dtypes import DTYPES
from genkern.gemm.parameter import PARAMETERS
from genkern.gemm.problem import INT32
from genkern.kernels.contract.argument import (
    Argument,
    Constant,
    Copied,
    Counters,
    Descriptor,
    Integer,
    Leading,
    Map,
    Pointer,
    Stride,
    Workspace,
)
from genkern.kernels.contract.expression import (
    Bounds,
    Expression,
    Value,
    bounds_of,
    evaluate,
    fold,
    from_json,
    names_in,
    to_json,
)

# Version of the JSON format. It changes with the fields or their meaning.
VERSION = 4
_Grid = tuple[Value, Value, Value]
# Largest number of programs in a cluster, on any GPU.
_MOST_CLUSTER = 16


def _free(others: Iterable[str]) -> frozenset[str]:
    """Return the names that a stored value may use: units, M, run-time parameters, and `others`."""
    return frozenset({"units", "M", *PARAMETERS.run_time, *others})


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch.

    symbol: the kernel's name in its binary. In a plan that several binaries share, the prefix of their names.
    grid: number of programs in three dimensions.
    cluster: number of programs that share their memory and start together.
    starts_early: True if the kernel may be on the device while the launch before it runs (CUDA's programmatic dependent
        launch).
    arguments: the arguments in order, constants last.
    """

    symbol: str
    grid: _Grid
    cluster: int
    starts_early: bool
    arguments: tuple[Argument, ...]

    def programs(self, known: Mapping[str, Value]) -> tuple[int, int, int]:
        """Return the grid as numbers. `known` must have a value for each name in it, such as "units" or "M"."""
        x, y, z = (evaluate(value, known) for value in self.grid)
        return x, y, z

    def closed(self, known: Mapping[str, Value]) -> PlannedLaunch:
        """Return the launch with known names replaced by their values."""
        x, y, z = (fold(value, known) for value in self.grid)
        return replace(self, grid=(x, y, z), arguments=tuple(_closed(argument, known) for argument in self.arguments))


@dataclass(frozen=True)
class LaunchPlan:
    """One call.

    launches: the launches in order, each with one binary.
    workspace: size of the workspace in elements. If it is 0, a kernel with a workspace argument is passed the
        address of a buffer of 16 bytes.
    workspace_dtype: type of the workspace's elements.
    counters: number of int32 counters. They are zero before the first call, and each call leaves them zero.
    """

    launches: tuple[PlannedLaunch, ...]
    workspace: Value
    workspace_dtype: str
    counters: Value

    def workspace_elements(self, known: Mapping[str, Value]) -> tuple[int, int]:
        """Return the elements of the workspace and the number of counters. `known` must have a value for each name."""
        return evaluate(self.workspace, known), evaluate(self.counters, known)

    @property
    def hangs_on(self) -> frozenset[str]:
        """The names in the plan's expressions, such as M or units, whose values a launch needs."""
        return frozenset[str]().union(*map(names_in, self._values))

    @property
    def _values(self) -> list[Value]:
        """Every value that is computed when the plan is used."""
        values: list[Value] = [self.workspace, self.counters]
        for launch in self.launches:
            values += launch.grid
            for argument in launch.arguments:
                values += [getattr(argument, name) for name in _VALUES.get(type(argument), ())]
        return values

    def require_computable(self, known: Mapping[str, Bounds]) -> None:
        """Raise InputError unless every value can be computed for all values of the names within their bounds."""
        for value in self._values:
            bounds_of(value, known)

    def keeps_promises(self, m: int) -> bool:
        """Return whether the numbers that depend only on M have the divisors that the kernels rely on, at M = `m`."""
        return all(
            evaluate(argument.value, {"M": m}) % argument.multiple_of == 0
            for launch in self.launches
            for argument in launch.arguments
            if isinstance(argument, Integer) and argument.multiple_of > 1 and names_in(argument.value) == {"M"}
        )

    def closed(self, known: Mapping[str, Value]) -> LaunchPlan:
        """Return the plan with known names replaced by their values, such as a config's run-time parameters."""
        return replace(
            self,
            launches=tuple(launch.closed(known) for launch in self.launches),
            workspace=fold(self.workspace, known),
            counters=fold(self.counters, known),
        )

    def to_json(self) -> str:
        """Return the plan as JSON text, for files and other processes."""
        data = {
            "version": VERSION,
            "launches": [_launch_data(launch) for launch in self.launches],
            "workspace": to_json(self.workspace),
            "workspace_dtype": self.workspace_dtype,
            "counters": to_json(self.counters),
        }
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, others: Iterable[str] = ()) -> LaunchPlan:
        """Return the plan that `to_json` has turned into `text`. Raises InputError for any other text.

        `others` are additional names that its values may use: run-time parameters that a user's family declares and
        that this process does not know.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            raise InputError(f"{text[:80]!r} is no launch plan: not JSON") from None
        return cls.from_data(data, others)

    @classmethod
    def from_data(cls, data: Any, others: Iterable[str] = ()) -> LaunchPlan:
        """Like `from_json`, for parsed JSON."""
        names = {"version", "launches", "workspace", "workspace_dtype", "counters"}
        if not isinstance(data, dict) or set(data) != names or data["version"] != VERSION:
            raise InputError(f"{str(data)[:80]!r} is no launch plan of version {VERSION}")
        launches = _checked(data["launches"], "a list", lambda it: isinstance(it, list) and bool(it))
        free = _free(others)
        return cls(
            tuple(_launch(launch, free) for launch in launches),
            _ranged("a workspace", data["workspace"], free, 0),
            _checked(data["workspace_dtype"], "a dtype", lambda it: isinstance(it, str) and it in DTYPES),
            _ranged("counters", data["counters"], free, 0),
        )


# Name of each kind of argument in JSON.
_KINDS: dict[str, type[Argument]] = {
    "pointer": Pointer,
    "descriptor": Descriptor,
    "copied": Copied,
    "map": Map,
    "integer": Integer,
    "leading": Leading,
    "stride": Stride,
    "workspace": Workspace,
    "counters": Counters,
    "constant": Constant,
}
# Fields of each kind that may be expressions.
_VALUES: dict[type[Argument], tuple[str, ...]] = {Integer: ("value",), Copied: ("first", "pitch")}
_KIND_OF = {kind: name for name, kind in _KINDS.items()}


def _closed(argument: Argument, known: Mapping[str, Value]) -> Argument:
    if isinstance(argument, Integer):
        return replace(argument, value=fold(argument.value, known))
    if isinstance(argument, Copied):
        return replace(argument, first=fold(argument.first, known), pitch=fold(argument.pitch, known))
    return argument


def _launch_data(launch: PlannedLaunch) -> dict[str, Any]:
    return {
        "symbol": launch.symbol,
        "grid": [to_json(value) for value in launch.grid],
        "cluster": launch.cluster,
        "starts_early": launch.starts_early,
        "arguments": [_argument_data(argument) for argument in launch.arguments],
    }


def _argument_data(argument: Argument) -> dict[str, Any]:
    values = {field.name: getattr(argument, field.name) for field in fields(argument)}
    data = {name: to_json(value) if isinstance(value, Expression) else value for name, value in values.items()}
    return {"kind": _KIND_OF[type(argument)], **data}


def _launch(data: Any, free: frozenset[str]) -> PlannedLaunch:
    names = [field.name for field in fields(PlannedLaunch)]
    if not isinstance(data, dict) or sorted(data) != sorted(names):
        raise InputError(f"{str(data)[:80]!r} is no launch: its fields are not {', '.join(names)}")
    arguments = _checked(data["arguments"], "a list", lambda it: isinstance(it, list))
    grid = _checked(data["grid"], "three values", lambda it: isinstance(it, list) and len(it) == 3)
    x, y, z = (_ranged("a grid", value, free, 1) for value in grid)
    return PlannedLaunch(
        _checked(data["symbol"], "a name", _is_name),
        (x, y, z),
        _checked(
            data["cluster"], f"a number from 1 to {_MOST_CLUSTER}", lambda it: _is_count(it) and it <= _MOST_CLUSTER
        ),
        _checked(data["starts_early"], "true or false", lambda it: isinstance(it, bool)),
        tuple(_argument(each, free) for each in arguments),
    )


def _argument(data: Any, free: frozenset[str]) -> Argument:
    kind = _KINDS.get(str(data.get("kind"))) if isinstance(data, dict) else None
    if kind is None or set(data) != {"kind", *(field.name for field in fields(kind))}:
        raise InputError(f"{str(data)[:80]!r} is no argument of a kernel: its kind or its fields are unknown")
    values = {name: value for name, value in data.items() if name != "kind"}
    for name, value in values.items():
        said, holds = ("a number or a name", _is_constant) if kind is Constant and name == "value" else _FIELDS[name]
        _checked(value, said, holds)
    if "box" in values:
        values["box"] = tuple(values["box"])
    for name in _VALUES.get(kind, ()):
        values[name] = from_json(values[name], free)
    return kind(**values)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.isidentifier()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < INT32


def _is_constant(value: object) -> bool:
    return _is_name(value) or (isinstance(value, int) and not isinstance(value, bool))


def _is_box(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


_FIELDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("name", "operand"), ("a name", _is_name)),
    **dict.fromkeys(("transposed", "swizzled"), ("true or false", lambda value: isinstance(value, bool))),
    "multiple_of": ("1, 2, 4, 8 or 16", lambda value: not isinstance(value, bool) and value in (1, 2, 4, 8, 16)),
    "box": ("two numbers from 1", _is_box),
    "swizzle": ("a number from 0 to 3", lambda value: not isinstance(value, bool) and value in range(4)),
    "dtype": ("a dtype", lambda value: isinstance(value, str) and value in DTYPES),
    **dict.fromkeys(("value", "first", "pitch"), ("a value", lambda value: True)),
}


def _ranged(what: str, data: Any, free: frozenset[str], least: int) -> Value:
    """Return a value from JSON data. A plain number must be from `least` to 2^31 - 1."""
    value = from_json(data, free)
    if isinstance(value, int) and not least <= value < INT32:
        raise InputError(f"a launch plan has {what} of {value}, not from {least} to {INT32 - 1}")
    return value


def _checked(value: Any, said: str, holds: Callable[[Any], bool]) -> Any:
    if not holds(value):
        raise InputError(f"a launch plan has {str(value)[:80]!r} instead of {said}")
    return value
