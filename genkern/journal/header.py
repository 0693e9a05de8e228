"""The header of a journal: what its facts depend on, and how two headers differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import genkern.gemm
import genkern.kernels
import genkern.ops
import genkern.templates
from genkern.errors import ResultsError
from genkern.ops.user_formats import format_folders

SCHEMA = 5
# Keys that may be missing, because a tool did not answer or an earlier release did not write them. Their absence alone
# does not make another run.
_NOT_ALWAYS_KNOWN = ("driver", "sm_clock_max_mhz", "memory_clock_max_mhz", "families")
# Releases with the same schema that gave configs other names.
_OTHER_NAMES = ("0.1.0",)
# A difference here does not make another run, since each fact names its code (`generator`).
_OF_FACTS = ("generator",)
# Conditions of a result in addition to the problem, the device and the timer.
_MADE_WITH = ("errRatio", "atol", "rtol", "triton", "init_type", "budget")


# Strategy of a run whose header does not name one.
_BEFORE_STRATEGIES = "predicted"


class UnusableJournal(ResultsError):
    """A journal that is damaged or of another run. `reason` says which; the message also says what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}{advice}")
        self.reason = reason


class OldJournal(UnusableJournal):
    """A journal of another version of genkern: it cannot be read, but it is not damaged."""


@lru_cache(maxsize=1)
def generator() -> str:
    """Return 16 digits of a digest of the sources that determine generated code.

    These are templates, families, formats, types and lowering.

    If it is equal, all kernels are equal. If it differs, the code digest in each fact tells whether its kernel changed.
    """
    packages = genkern.templates, genkern.kernels, genkern.ops, genkern.gemm
    places = [Path(package.__path__[0]) for package in packages] + list(format_folders())
    digest = hashlib.sha256()
    for place in places:
        # Only sources, not the files that Python compiles from them.
        for path in sorted(path for path in place.rglob("*") if path.suffix in (".py", ".j2", ".yaml")):
            digest.update(f"{path.relative_to(place)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def other_version(header: Mapping[str, Any]) -> str:
    """Return which version wrote a journal whose lines this one cannot read; "" if it can read them."""
    if (schema := header.get("schema", SCHEMA)) != SCHEMA:
        return f"schema {schema}, here {SCHEMA}"
    return str(header["genkern"]) if header.get("genkern") in _OTHER_NAMES else ""


def header_of_today(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a header with its `strategy` as name and number, whatever version wrote it.

    Earlier versions stored the number as `patience`, and omitted the strategy if it was the default of that time.
    """
    number = header.get("patience")
    name = _BEFORE_STRATEGIES
    if number:
        name = "patience"
    elif isinstance(budget := header.get("budget"), Mapping) and budget.get("exhaustive"):
        name = "exhaustive"
    said = str(header.get("strategy", name)) + (f":{number}" if number else "")
    return {**{key: value for key, value in header.items() if key != "patience"}, "strategy": said}


def origin_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return how the conditions of results in the run `found` differ from those in the run `expected`."""
    was, now = ({name: header.get(name) for name in _MADE_WITH} for header in (found, expected))
    spaces = [dict(header.get("space") or {}) for header in (found, expected)]
    # A run lists the spaces of its own ops only.
    of_both = [{op: space[op] for op in spaces[0].keys() & spaces[1].keys()} for space in spaces]
    unchecked = found.get("checks") == "none" != expected.get("checks", "none")
    return [*_space_differences(*of_both), *differences(was, now), *(["winners were not checked"] if unchecked else [])]


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return a description of each difference; mappings are compared recursively."""
    different = []
    for name in sorted({*found, *expected}.difference(_OF_FACTS)):
        was, now = found.get(name), expected.get(name)
        if name in _NOT_ALWAYS_KNOWN and None in (was, now):
            continue
        if name == "devices":
            different += _device_differences(was or {}, now or {})
        elif name == "space":
            different += _space_differences(was or {}, now or {})
        elif isinstance(was, dict) and isinstance(now, dict):
            different += differences(was, now)
        elif was != now:
            different.append(f"{name} was {was!r}, is {now!r}")
    return different


def _space_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return how the search spaces differ, by op. A digest would tell a reader nothing."""
    different = []
    for op in sorted(set(found) | set(expected)):
        was, now = found.get(op, {"name": "none"}), expected.get(op, {"name": "none"})
        if was["name"] != now["name"]:
            different.append(f"the search space of {op} was {was['name']}, is {now['name']}")
        # Another release describes the same space with other keys; then only the name is compared.
        elif was != now and was.keys() == now.keys():
            different.append(f"the search space {now['name']} of {op} has changed")
    return different


def _device_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return how the clocks of each device differ, if no earlier device had equal clocks.

    A run may be continued on another device with equal clocks.
    """
    different = []
    for index, clocks in expected.items():
        if found and all(differences(known, clocks) for known in found.values()):
            before = found.get(index, next(iter(found.values())))
            different += [f"{difference} on device {index}" for difference in differences(before, clocks)]
    return different
