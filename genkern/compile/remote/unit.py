"""Units of work that machines exchange: compile jobs as text, their results as bytes. Both are parsed as data only."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from genkern.compile.cache import Failure
from genkern.compile.compiler import CompileJob
from genkern.compile.kernels_file import MadeFor
from genkern.errors import BugError, OutputError
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec, Target

# Version of the exchanged data; nodes with another version are left out.
PROTOCOL = 2
_PAIRS = "signature", "constants", "divisible", "options"


@dataclass(frozen=True)
class SharedCache:
    """A cache that nodes may share: its folder, and the name of a folder in it that only this run has created.

    With `whole` the entry is returned as bytes even if the cache is shared: a network file system may show it late.
    """

    folder: str
    probe: str
    whole: bool = False

    @property
    def is_seen(self) -> bool:
        """True if this process sees that very folder, and may write there."""
        return (Path(self.folder) / self.probe).is_dir() and os.access(self.folder, os.W_OK)


@dataclass(frozen=True)
class CompileUnit:
    """One binary to compile: its key, the text of its module, and everything else that the key depends on.

    If the node sees the `shared` cache, the entry is stored there and only its key comes back.
    """

    key: str
    module: str
    spec: KernelSpec
    target: Target
    timeout_s: float
    made_for: MadeFor
    shared: SharedCache | None = None

    @classmethod
    def of(cls, job: CompileJob, module: str, made_for: MadeFor, shared: SharedCache | None = None) -> CompileUnit:
        return cls(job.key, module, job.spec, job.target, job.timeout_s, made_for, shared)


def task_of(units: Sequence[CompileUnit]) -> bytes:
    """Return units as compressed JSON, with each module text once. A module for sm_90 has 45 KB, compressed 12 KB."""
    modules = [*dict.fromkeys(unit.module for unit in units)]
    said = [vars(unit) | {"module": modules.index(unit.module), **_nested(unit)} for unit in units]
    parts = zlib.compress(json.dumps(said, separators=(",", ":")).encode(), 1), *map(_packed, modules)
    return b"".join([json.dumps([*map(len, parts)]).encode(), b"\n", *parts])


def read_task(data: bytes) -> list[CompileUnit]:
    """Parse the units of a task. Raises ValueError, TypeError or LookupError for invalid bytes."""
    head, _, rest = data.partition(b"\n")
    lengths = [int(length) for length in json.loads(head)]
    if not lengths or min(lengths) < 0 or sum(lengths) != len(rest):
        raise ValueError("the task's length is wrong")
    try:
        said, *modules = (zlib.decompress(part).decode() for part in _parts(rest, lengths))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return [_unit(each, modules) for each in json.loads(said)]


# The units of one problem have the same text.
@lru_cache(maxsize=64)
def _packed(module: str) -> bytes:
    return zlib.compress(module.encode(), 1)


def _nested(unit: CompileUnit) -> dict[str, Any]:
    """Return the fields of a unit that are objects, as JSON can store them."""
    shared = None if unit.shared is None else vars(unit.shared)
    return {"spec": vars(unit.spec), "target": asdict(unit.target), "made_for": vars(unit.made_for), "shared": shared}


def _unit(said: dict[str, Any], modules: Sequence[str]) -> CompileUnit:
    spec: dict[str, Any] = {
        name: tuple((str(key), value) for key, value in given) if name in _PAIRS else str(given)
        for name, given in said["spec"].items()
    }
    target = Target(str(said["target"]["backend"]), said["target"]["arch"], int(said["target"]["warp_size"]))
    made_for = MadeFor(**{name: str(value) for name, value in said["made_for"].items()})
    shared = said["shared"]
    if shared is not None:
        shared = SharedCache(str(shared["folder"]), str(shared["probe"]), bool(shared["whole"]))
    module, timeout_s = modules[int(said["module"])], float(said["timeout_s"])
    return CompileUnit(str(said["key"]), module, KernelSpec(**spec), target, timeout_s, made_for, shared)


def _parts(data: bytes, lengths: Sequence[int]) -> Iterator[bytes]:
    start = 0
    for length in lengths:
        yield data[start : start + length]
        start += length


@dataclass(frozen=True)
class IncompatibleNode:
    """A node, by its address, that cannot compile a unit, and why; for example, it has another release of Triton."""

    node: str
    why: str


@dataclass(frozen=True)
class AlreadyInSharedCache:
    """The entry of this key is in the shared cache."""

    key: str


@dataclass(frozen=True)
class NotBegun:
    """The unit was not begun, since earlier units of its task took long; another node may have it."""


Result = Mapping[str, bytes] | AlreadyInSharedCache | Failure | OutputError | BugError | IncompatibleNode | NotBegun


def answered(results: Sequence[Result]) -> bytes:
    """Return the results of a task's units, in order, as bytes; a result is the files of a cache entry, or a record."""
    files = [data for result in results if isinstance(result, Mapping) for data in result.values()]
    return b"".join([json.dumps([*map(_said, results)]).encode(), b"\n", *files])


def _said(result: Result) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return {"files": {name: len(data) for name, data in result.items()}}
    if isinstance(result, Failure):
        return {"failure": [result.key, result.outcome.value, result.message, result.from_outside]}
    if isinstance(result, AlreadyInSharedCache):
        return {"there": [result.key]}
    if isinstance(result, IncompatibleNode):
        return {"foreign": [result.node, result.why]}
    if isinstance(result, NotBegun):
        return {"not_begun": []}
    if isinstance(result, BugError):
        return {"bug": [result.message, result.details]}
    return {"output": [str(result)]}


def read_answer(data: bytes) -> list[Result]:
    """Parse the answer to a task. The files of an entry are not validated.

    Raises ValueError, TypeError, LookupError or AttributeError for invalid bytes.
    """
    head, _, rest = data.partition(b"\n")
    said = [pair for each in json.loads(head) for pair in each.items()]
    lengths = [int(length) for kind, given in said if kind == "files" for length in given.values()]
    if sum(lengths) != len(rest):
        raise ValueError("the answer's length is wrong")
    files = _parts(rest, lengths)
    return [_result(kind, given, files) for kind, given in said]


def _result(kind: str, given: Any, files: Iterator[bytes]) -> Result:
    if kind == "files":
        return {str(name): next(files) for name in given}
    if kind == "failure":
        key, outcome, message, from_outside = given
        return Failure(str(key), Outcome(outcome), str(message), bool(from_outside))
    words: dict[str, type[AlreadyInSharedCache | IncompatibleNode | NotBegun | BugError | OutputError]] = {
        "there": AlreadyInSharedCache,
        "foreign": IncompatibleNode,
        "not_begun": NotBegun,
        "bug": BugError,
        "output": OutputError,
    }
    return words[kind](*map(str, given))
