"""Read the table of GPUs: gpus.yaml, then users' files in the same form, which add to it.

A user's file is named by an environment variable, so child processes read it too. Its entries are new architectures,
complete or `like` a known one, and new devices of known architectures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from importlib import resources
from typing import Any

from genkern.errors import InputError
from genkern.file_io import MAX_READ_BYTES, regular_bytes
from genkern.gemm.gpu import Capabilities, Gpu, Rates

# Variable with file names, separated as in PATH.
ENVIRONMENT = "GENKERN_GPU_FILES"
ARCH = re.compile(r"gfx[0-9a-f]+|sm_[0-9]+")
NO_ARCH = "is not an architecture such as gfx942 or sm_90"
# Above every figure of a device; floats represent every integer up to it.
_MOST = 2**53
_KINDS = {"int": int, "float": (int, float), "str": str, "bool": bool}
# Keys of an entry or its devices that are not fields of Gpu, and fields that are not keys.
_ONLY_IN_FILES = ("match", "flops_per_clock")
_ONLY_IN_RECORDS = ("arch", "peak_tflops")
_KEYS = frozenset({each.name for each in fields(Gpu)} - {*_ONLY_IN_RECORDS}) | {*_ONLY_IN_FILES}


@dataclass(frozen=True)
class Architecture:
    """An architecture of the table.

    common: values that all its devices share, by the keys of its entry
    devices: for each device the words of the driver's name for it, and its figures; the default device first
    """

    common: Mapping[str, Any]
    devices: tuple[tuple[frozenset[str], Gpu], ...]


def read_table() -> dict[str, Architecture]:
    """Return every architecture by name. Raises InputError, one line, for a user's file that cannot be used."""
    shipped = resources.files("genkern.gemm").joinpath("gpus.yaml").read_text(encoding="utf-8")
    table = added({}, shipped)
    for name in filter(None, os.environ.get(ENVIRONMENT, "").split(os.pathsep)):
        try:
            text = regular_bytes(name, MAX_READ_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{ENVIRONMENT}: cannot read {name}: {_one_line(error)}") from None
        try:
            table = added(table, text)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
    return table


def added(table: Mapping[str, Architecture], text: str) -> dict[str, Architecture]:
    """Return the table extended by the entries of a file. Raises InputError, one line that says where."""
    # Programs that only call kernels import this module and never read the table.
    import yaml

    try:
        # Every process reads the table, and the C parser takes a tenth of the time. PyYAML may be built without it.
        entries = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"not valid YAML: {_one_line(error)}") from None
    if not isinstance(entries, dict) or not entries:
        raise InputError("expected a mapping of architectures to their entries (docs/your_own_gpu.md)")
    found = dict(table)
    for arch, entry in entries.items():
        if not isinstance(arch, str) or not ARCH.fullmatch(arch):
            raise InputError(f"{str(arch)[:40]!r} {NO_ARCH}")
        try:
            found[arch] = _architecture(arch, entry, found)
        except InputError as error:
            raise InputError(f"{arch}: {error}") from None
    return found


def _architecture(arch: str, entry: object, table: Mapping[str, Architecture]) -> Architecture:
    own = _mapping("the entry", entry)
    devices, like = own.pop("devices", None), own.get("like", "")
    if not isinstance(devices, list) or not devices:
        raise InputError("devices is not a list of devices")
    if not isinstance(like, str) or (like and like not in table):
        raise InputError(f"like = {str(like)[:40]!r} is not one of the architectures before it: {', '.join(table)}")
    if like and arch in table:
        raise InputError("like is for an architecture that is not known yet")
    known = table.get(arch) or table.get(like) or Architecture({}, ())
    common = _merged(known.common, own)
    made = tuple(_device(arch, _merged(common, _mapping("a device", device))) for device in devices)
    if arch not in table:
        return Architecture(common, made)
    # A device that is already known keeps its place, since the first one is the default.
    found = {device[1].name: device for device in (*known.devices, *made)}
    return Architecture(known.common, tuple(found.values()))


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge an entry into the common values. Sources are concatenated; capabilities and rates are merged key by key."""
    if unknown := set(own) - _KEYS:
        raise InputError(f"there is no key {str(min(unknown, key=str))[:40]!r}")
    sources = (*common.get("sources", ()), *_listed(own.get("sources", ())))
    inner = {
        key: {**common.get(key, {}), **_mapping(key, own[key])} if key in own else common.get(key, {})
        for key in ("has", "rates")
    }
    return {**common, **own, "sources": sources, **inner}


def _device(arch: str, values: dict[str, Any]) -> tuple[frozenset[str], Gpu]:
    for key in sorted(_KEYS - {"like", "rates"}):
        if key not in values:
            raise InputError(f"{values.get('name', 'a device')} has no {key}")
    match, flops_per_clock = values.pop("match"), _mapping("flops_per_clock", values.pop("flops_per_clock"))
    if not isinstance(match, str) or not match.split():
        raise InputError(f"match = {str(match)[:40]!r} has no words of the driver's name for the device")
    if not values["sources"]:
        raise InputError("sources names no document")
    has = Capabilities(**_typed(Capabilities, values.pop("has")))
    rates = values.pop("rates")
    figures = _typed(Gpu, values)
    if not figures["name"].isprintable():
        raise InputError(f"name = {figures['name'][:40]!r} is not a line of text")
    if not all(type(flops) in (int, float) and 0 < flops < _MOST for flops in flops_per_clock.values()):
        raise InputError("flops_per_clock has a value that is not a positive number")
    rate = figures["compute_units"] * figures["clock_mhz"] * 1e-6
    peaks = {dtype: rate * flops for dtype, flops in flops_per_clock.items()}
    reached = Rates(**_typed(Rates, rates)) if rates else None
    gpu = Gpu(**figures, arch=arch, has=has, peak_tflops=peaks, rates=reached)
    _require_consistent(gpu)
    return frozenset(match.lower().split()), gpu


def _require_consistent(gpu: Gpu) -> None:
    if gpu.shared_bytes_per_block + gpu.shared_reserved_bytes > gpu.shared_bytes_per_unit:
        raise InputError(f"{gpu.name}: a block may have more shared memory than a unit has")
    if gpu.threads_per_block_max > gpu.threads_per_unit_max:
        raise InputError(f"{gpu.name}: a block may have more threads than a unit has")
    if gpu.threads_per_unit_max % (gpu.warp_size * gpu.simds_per_unit):
        raise InputError(f"{gpu.name}: a unit's threads are not a whole number of warps on each of its SIMDs")
    if gpu.last_level_cache_mib < gpu.l2_mib:
        raise InputError(f"{gpu.name}: the last-level cache is smaller than L2")


def _typed(record: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Check values against the fields of a record and return them.

    Raises InputError for an unknown key or a wrong type.
    """
    types = {each.name: str(each.type) for each in fields(record)}
    required = {each.name for each in fields(record) if each.default is MISSING} - {*_ONLY_IN_RECORDS, "has"}
    if lacking := required - set(values):
        raise InputError(f"{min(lacking)} is missing")
    for key, value in values.items():
        if key not in types:
            raise InputError(f"there is no key {str(key)[:40]!r}: use some of {', '.join(types)}")
        kind = types[key]
        if kind in _KINDS and (not isinstance(value, _KINDS[kind]) or (kind != "bool" and isinstance(value, bool))):  # type: ignore[arg-type]
            raise InputError(f"{key} = {str(value)[:40]!r} is not of type {kind}")
        if kind in ("int", "float") and not value < _MOST:
            raise InputError(f"{key} = {str(value)[:40]} is not a valid figure of a device")
    return dict(values)


def _mapping(what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what} is not a mapping")
    return dict(value)


def _listed(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise InputError("sources is not a list of documents")
    return tuple(value)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
