"""The compiled binaries of a size as one value of a journal: the main binary of each unit, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from genkern.decoding import decode
from genkern.gemm.records import Binary, Resources
from genkern.journal.batch import restored, shortened

# Hexadecimal digits of a content address that are stored; enough to distinguish binaries.
_DIGITS = 16
# The code digest is omitted, since the content address identifies the binary.
_RESOURCES = tuple(field.name for field in fields(Resources) if field.name != "code_sha256")


@dataclass(frozen=True)
class JournalBinary:
    """The main binary of a unit.

    key: first digits of its content address
    resources: what it needs of the hardware
    compile_s: seconds that its compile took; None if unknown, as for cache entries of older versions
    """

    key: str
    resources: Resources
    compile_s: float | None = None

    @classmethod
    def of(cls, binary: Binary) -> JournalBinary:
        return cls(binary.key[:_DIGITS], binary.resources, binary.compile_s)


def binary_columns(made: Mapping[str, JournalBinary]) -> dict[str, Any]:
    """Return the binaries, by the name of the first config of their unit, as JSON values.

    Columns without values are omitted.
    """
    each = list(made.values())
    columns = {name: [getattr(binary.resources, name) for binary in each] for name in _RESOURCES}
    columns["compile_s"] = [binary.compile_s for binary in each]
    said = {name: column for name, column in columns.items() if any(value is not None for value in column)}
    return {"config": shortened(made), "key": [binary.key for binary in each], **said}


def binaries_of(value: Mapping[str, Any]) -> dict[str, JournalBinary]:
    """Return the binaries of `binary_columns`.

    Raises ValueError, LookupError, TypeError or AttributeError.
    """
    names, keys = restored(value["config"]), list(map(str, value["key"]))
    nothing: Sequence[None] = [None] * len(keys)
    needs = {name: value.get(name, nothing) for name in _RESOURCES}
    seconds = value.get("compile_s", nothing)
    made = {}
    for place, (name, key) in enumerate(zip(names, keys, strict=True)):
        resources = {need: column[place] for need, column in needs.items()}
        made[name] = decode(JournalBinary, {"key": key, "resources": resources, "compile_s": seconds[place]})
    return made
