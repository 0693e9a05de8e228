"""A unit of compiling between machines: the job as text, what came of it as bytes. Both are read as data."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genkern.errors import BugError, OutputError
from genkern.farm.cache import Failure
from genkern.farm.compiler import CompileJob
from genkern.farm.shipped.kernels_file import MadeFor
from genkern.gemm.records import Outcome
from genkern.kernels.kernel import KernelSpec, Target

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

    def data(self) -> bytes:
        """The unit as JSON, compressed: a module of sm_90 has 45 KB of text, which are 12 KB after 0.3 ms."""
        return zlib.compress(json.dumps(asdict(self), separators=(",", ":")).encode(), 1)

    @classmethod
    def read(cls, data: bytes) -> Unit:
        """The unit that these bytes are. Raises ValueError, TypeError or LookupError for what is none."""
        try:
            said = json.loads(zlib.decompress(data))
        except zlib.error as error:
            raise ValueError(str(error)) from None
        spec: dict[str, Any] = {
            name: tuple((str(key), value) for key, value in given) if name in _PAIRS else str(given)
            for name, given in said["spec"].items()
        }
        target = Target(str(said["target"]["backend"]), said["target"]["arch"], int(said["target"]["warp_size"]))
        made_for = MadeFor(**{name: str(value) for name, value in said["made_for"].items()})
        module, timeout_s, shared = str(said["module"]), float(said["timeout_s"]), said.get("shared")
        if shared is not None:
            shared = Shared(str(shared["folder"]), str(shared["probe"]), bool(shared["whole"]))
        return cls(str(said["key"]), module, KernelSpec(**spec), target, timeout_s, made_for, shared)

    @classmethod
    def of(cls, job: CompileJob, module: str, made_for: MadeFor, shared: Shared | None = None) -> Unit:
        return cls(job.key, module, job.spec, job.target, job.timeout_s, made_for, shared)


@dataclass(frozen=True)
class Foreign:
    """A node that cannot make a unit, by its address, and why: it has another Triton, say."""

    node: str
    why: str


@dataclass(frozen=True)
class There:
    """The entry of this key lies in the shared cache."""

    key: str


Result = Mapping[str, bytes] | There | Failure | OutputError | BugError | Foreign


def answered(result: Result) -> bytes:
    """What came of a unit: the files of its entry in the cache, or what else."""
    files: Mapping[str, bytes] = {}
    if isinstance(result, Mapping):
        files = result
        said: dict[str, Any] = {"files": {name: len(data) for name, data in files.items()}}
    elif isinstance(result, Failure):
        said = {"failure": [result.key, result.outcome.value, result.message, result.from_outside]}
    elif isinstance(result, There):
        said = {"there": result.key}
    elif isinstance(result, Foreign):
        said = {"foreign": [result.node, result.why]}
    elif isinstance(result, BugError):
        said = {"bug": [result.message, result.details]}
    else:
        said = {"output": [str(result)]}
    return b"".join([json.dumps(said).encode(), b"\n", *files.values()])


def read_answer(data: bytes) -> Result:
    """What an answer says; the files of an entry are as unproved as those that anybody lays into a cache.

    Raises ValueError, TypeError, LookupError or AttributeError for what is no answer.
    """
    head, _, rest = data.partition(b"\n")
    ((kind, said),) = json.loads(head).items()
    if kind == "files":
        files, start = {}, 0
        for name, length in said.items():
            files[str(name)], start = rest[start : start + int(length)], start + int(length)
        return files
    if kind == "there":
        return There(str(said))
    if kind == "failure":
        key, outcome, message, from_outside = said
        return Failure(str(key), Outcome(outcome), str(message), bool(from_outside))
    if kind == "foreign":
        return Foreign(*map(str, said))
    if kind == "bug":
        return BugError(*map(str, said))
    if kind == "output":
        return OutputError(*map(str, said))
    raise ValueError(f"no answer: {kind!r:.40}")
