"""What compilers made for a size, as one value of a journal: of each unit the binary that multiplies, in columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from genkern.gemm.config import name_today
from genkern.gemm.former_names import is_gone
from genkern.gemm.records import Binary, Resources, require_types
from genkern.journal.batch import restored, shortened

# So many hexadecimal digits of a content address tell binaries apart.
_DIGITS = 16
# A digest of the code says nothing that the content address does not.
_RESOURCES = tuple(field.name for field in fields(Resources) if field.name != "code_sha256")


@dataclass(frozen=True)
class MadeBinary:
    """The binary of a unit: the first digits of its content address, what it needs of the hardware, and the seconds
    that its compile took (None where nobody knows, as of what an older genkern left in the cache).
    """

    key: str
    resources: Resources
    compile_s: float | None = None

    @classmethod
    def of(cls, binary: Binary) -> MadeBinary:
        return cls(binary.key[:_DIGITS], binary.resources, binary.compile_s)


def made_columns(made: Mapping[str, MadeBinary]) -> dict[str, Any]:
    """The binaries by the name of the first config of their unit, as JSON values; what all lack is left out."""
    each = list(made.values())
    columns = {name: [getattr(binary.resources, name) for binary in each] for name in _RESOURCES}
    columns["compile_s"] = [binary.compile_s for binary in each]
    said = {name: column for name, column in columns.items() if any(value is not None for value in column)}
    return {"config": shortened(made), "key": [binary.key for binary in each], **said}


def made_of(value: Mapping[str, Any]) -> dict[str, MadeBinary]:
    """The binaries whose `made_columns` these are, by names of today; without those of families that are no more.

    Raises ValueError, LookupError, TypeError or AttributeError.
    """
    names, keys = restored(value["config"]), list(map(str, value["key"]))
    nothing: Sequence[None] = [None] * len(keys)
    needs = {name: value.get(name, nothing) for name in _RESOURCES}
    seconds = value.get("compile_s", nothing)
    made = {}
    for place, (name, key) in enumerate(zip(names, keys, strict=True)):
        if not is_gone(name):
            resources = Resources(**{need: column[place] for need, column in needs.items()})
            made[name_today(name)] = require_types(MadeBinary(key, require_types(resources), seconds[place]))
    return made
