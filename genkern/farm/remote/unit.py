"""Units of compiling between machines: jobs as text, what came of them as bytes. Both are read as data."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from genkern.errors import BugError, OutputError
from genkern.farm.cache import Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec, Target

# Nodes whose genkern writes units or answers in another way are left out.
PROTOCOL = 2
_PAIRS = "signature", "constants", "divisible", "options"


@dataclass(frozen=True)
class Shared:
    """A cache that nodes may see as well: its folder, and a folder in it that only this run has made.

    With `whole` the entry is wanted as bytes all the same: network file systems may show it later than it is told of.
    """

    folder: str
    probe: str
    whole: bool = False

    @property
    def is_seen(self) -> bool:
        """Whether this process sees that very folder, and may write there."""
        return (Path(self.folder) / self.probe).is_dir() and os.access(self.folder, os.W_OK)


@dataclass(frozen=True)
class Unit:
    """One binary to make: its key, the module's text in the place of a path, and what decides the key besides.

    Where the node sees the `shared` cache the entry lands there, and only its name comes back.
    """

    key: str
    module: str
    spec: KernelSpec
    target: Target
    timeout_s: float
    made_for: MadeFor
    shared: Shared | None = None

    @classmethod
    def of(cls, job: CompileJob, module: str, made_for: MadeFor, shared: Shared | None = None) -> Unit:
        return cls(job.key, module, job.spec, job.target, job.timeout_s, made_for, shared)


def task_of(units: Sequence[Unit]) -> bytes:
    """Units as JSON, compressed, with each of their modules once: one of sm_90 has 45 KB of text, which are 12 KB."""
    modules = [*dict.fromkeys(unit.module for unit in units)]
    said = [vars(unit) | {"module": modules.index(unit.module), **_nested(unit)} for unit in units]
    parts = zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 1), *map(_packed, modules)
    return b"".join([json.dumps([*map(len, parts)]).encode(), b"\n", *parts])


def read_task(data: bytes) -> list[Unit]:
    """The units that these bytes are. Raises ValueError, TypeError or LookupError for what is none."""
    head, _, rest = data.partition(b"\n")
    lengths = [int(length) for length in json.loads(head)]
    if not lengths or min(lengths) < 0 or sum(lengths) != len(rest):
        raise ValueError("a task of another length")
    try:
        said, *modules = (zlib.decompress(part).decode() for part in _parts(rest, lengths))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return [_unit(each, modules) for each in json.loads(said)]


# Units of a size have one text.
@lru_cache(maxsize=64)
def _packed(module: str) -> bytes:
    return zlib.compress(module.encode(), 1)


def _nested(unit: Unit) -> dict[str, Any]:
    """Those fields that JSON does not know."""
    shared = None if unit.shared is None else vars(unit.shared)
    return {"spec": vars(unit.spec), "target": asdict(unit.target), "made_for": vars(unit.made_for), "shared": shared}


def _unit(said: dict[str, Any], modules: Sequence[str]) -> Unit:
    spec: dict[str, Any] = {
        name: tuple((str(key), value) for key, value in given) if name in _PAIRS else str(given)
        for name, given in said["spec"].items()
    }
    target = Target(str(said["target"]["backend"]), said["target"]["arch"], int(said["target"]["warp_size"]))
    made_for = MadeFor(**{name: str(value) for name, value in said["made_for"].items()})
    shared = said["shared"]
    if shared is not None:
        shared = Shared(str(shared["folder"]), str(shared["probe"]), bool(shared["whole"]))
    module, timeout_s = modules[int(said["module"])], float(said["timeout_s"])
    return Unit(str(said["key"]), module, KernelSpec(**spec), target, timeout_s, made_for, shared)


def _parts(data: bytes, lengths: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield data[start : start + length]
        start += length


@dataclass(frozen=True)
class Foreign:
    """A node that cannot make a unit, by its address, and why: it has another Triton, say."""

    node: str
    why: str


@dataclass(frozen=True)
class There:
    """The entry of this key lies in the shared cache."""

    key: str


@dataclass(frozen=True)
class NotBegun:
    """The units before it took so long that others are to have this one."""


Result = Mapping[str, bytes] | There | Failure | OutputError | BugError | Foreign | NotBegun


def answered(results: Sequence[Result]) -> bytes:
    """What came of the units of a task, in their order: the files of an entry in the cache, or what else."""
    files = [data for result in results if isinstance(result, Mapping) for data in result.values()]
    return b"".join([json.dumps([*map(_said, results)]).encode(), b"\n", *files])


def _said(result: Result) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return {"files": {name: len(data) for name, data in result.items()}}
    if isinstance(result, Failure):
        return {"failure": [result.key, result.outcome.value, result.message, result.from_outside]}
    if isinstance(result, There):
        return {"there": [result.key]}
    if isinstance(result, Foreign):
        return {"foreign": [result.node, result.why]}
    if isinstance(result, NotBegun):
        return {"not_begun": []}
    if isinstance(result, BugError):
        return {"bug": [result.message, result.details]}
    return {"output": [str(result)]}


def read_answer(data: bytes) -> list[Result]:
    """What an answer says; the files of an entry are as unproved as those that anybody lays into a cache.

    Raises ValueError, TypeError, LookupError or AttributeError for what is no answer.
    """
    head, _, rest = data.partition(b"\n")
    said = [pair for each in json.loads(head) for pair in each.items()]
    lengths = [int(length) for kind, given in said if kind == "files" for length in given.values()]
    if sum(lengths) != len(rest):
        raise ValueError("an answer of another length")
    files = _parts(rest, lengths)
    return [_result(kind, given, files) for kind, given in said]


def _result(kind: str, given: Any, files: Iterator[bytes]) -> Result:
    if kind == "files":
        return {str(name): next(files) for name in given}
    if kind == "failure":
        key, outcome, message, from_outside = given
        return Failure(str(key), Outcome(outcome), str(message), bool(from_outside))
    words: dict[str, type[There | Foreign | NotBegun | BugError | OutputError]] = {
        "there": There, "foreign": Foreign, "not_begun": NotBegun, "bug": BugError, "output": OutputError
    }  # fmt: skip
    return words[kind](*map(str, given))
