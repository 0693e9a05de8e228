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
from genkern.ops.outside import folders

SCHEMA = 5
# What a tool that does not answer leaves out, or a release before did: that alone makes no other run.
_NOT_ALWAYS_KNOWN = ("driver", "sm_clock_max_mhz", "memory_clock_max_mhz", "families")
# Releases whose runs go on here: their kernels are these, by names that are read (genkern.gemm.former_names).
_GOES_ON = ("0.1.0",)
# Makes no other run: facts say of which code they are (`generator`).
_OF_FACTS = ("generator",)
# What decides whether a result is the one that is asked for, besides the problem, the device and what measures it.
_MADE_WITH = ("errRatio", "atol", "rtol", "triton", "init_type", "budget")


# What a run was searched with whose header does not say it.
_BEFORE_STRATEGIES = "predicted"


class UnusableJournal(ResultsError):
    """A journal that is damaged or of another run: `reason` says which, the message also what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}{advice}")
        self.reason = reason


class OldJournal(UnusableJournal):
    """A journal that another version of genkern wrote: none of it can be read, and nothing is wrong with it."""


@lru_cache(maxsize=1)
def generator() -> str:
    """16 digits of all that decides what genkern generates: templates, families, formats, types, lowering.

    Where it is the same, so is every kernel. Where not, each fact says of which code it is, and most are as they were.
    """
    packages = genkern.templates, genkern.kernels, genkern.ops, genkern.gemm
    places = [Path(package.__path__[0]) for package in packages] + list(folders())
    digest = hashlib.sha256()
    for place in places:
        # Not what Python has made of them.
        for path in sorted(path for path in place.rglob("*") if path.suffix in (".py", ".j2", ".yaml")):
            digest.update(f"{path.relative_to(place)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def header_of_today(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """A header with its `strategy`, name and number, whatever wrote it: of before, it is the default of then where
    nothing says another one, and the number stands under `patience`.
    """
    number = header.get("patience")
    name = _BEFORE_STRATEGIES
    if number:
        name = "patience"
    elif isinstance(budget := header.get("budget"), Mapping) and budget.get("exhaustive"):
        name = "exhaustive"
    said = str(header.get("strategy", name)) + (f":{number}" if number else "")
    return {**{key: value for key, value in header.items() if key != "patience"}, "strategy": said}


def made_otherwise(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """How results of the run with the header `found` were made otherwise than one with `expected` would make them."""
    was, now = ({name: header.get(name) for name in _MADE_WITH} for header in (found, expected))
    spaces = [dict(header.get("space") or {}) for header in (found, expected)]
    # A run has the spaces of its own ops.
    of_both = [{op: space[op] for op in spaces[0].keys() & spaces[1].keys()} for space in spaces]
    unchecked = found.get("checks") == "none" != expected.get("checks", "none")
    return [*_space_differences(*of_both), *differences(was, now), *(["winners were not checked"] if unchecked else [])]


def differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """What differs, by name; of mappings only what differs in them."""
    different = []
    for name in sorted({*found, *expected}.difference(_OF_FACTS)):
        was, now = found.get(name), expected.get(name)
        if (name in _NOT_ALWAYS_KNOWN and None in (was, now)) or (name == "genkern" and was in _GOES_ON):
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
    """By op how the search spaces differ; a digest says nothing to a person."""
    different = []
    for op in sorted(set(found) | set(expected)):
        was, now = found.get(op, {"name": "none"}), expected.get(op, {"name": "none"})
        if was["name"] != now["name"]:
            different.append(f"the search space of {op} was {was['name']}, is {now['name']}")
        # What another release wrote there is of another text for the same space: then the name decides.
        elif was != now and was.keys() == now.keys():
            different.append(f"the search space {now['name']} of {op} was another")
    return different


def _device_differences(found: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """How the clocks of a device differ from those of every device before: others of the same clocks may go on."""
    different = []
    for index, clocks in expected.items():
        if found and all(differences(known, clocks) for known in found.values()):
            before = found.get(index, next(iter(found.values())))
            different += [f"{difference} on device {index}" for difference in differences(before, clocks)]
    return different
