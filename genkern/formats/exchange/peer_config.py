"""What files of other programs say of sizes and configs, whichever of them it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from genkern.errors import InputError
from genkern.formats.exchange.timed_size import TimedSize
from genkern.formats.flat_yaml import shown
from genkern.formats.tuned_row import config_of
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, gpu_named, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import form_of
from genkern.kernels.legality import legal
from genkern.ops.op import get_op

# The family whose kernel is theirs: a program for each tile, pointer loads in a pipeline, tl.dot, groups of rows.
FAMILY = "tiled"
# What their configs have by genkern's names, besides the tile.
_PLAIN = ("GROUP_SIZE_M", "num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
# num_stages where a config leaves it to Triton.
_TRITONS_STAGES = {"amd": 2, "nvidia": 3}


@dataclass(frozen=True)
class Candidate:
    """A size of a file with the config that the file has for it; None where it has none that genkern could run."""

    problem: GemmProblem
    config: Config | None = None


@dataclass
class Imported:
    """What a file gave, in its order.

    `left_out` counts what is not taken, by the reason; `notes` counts what is taken otherwise than the file says it.
    """

    arch: str
    candidates: list[Candidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def take(self, problem: GemmProblem, values: object, names: Mapping[str, str], ignored: Collection[str]) -> None:
        """Add a config that is legal for the problem, or count why it is not added. Raises InputError (see parsed)."""
        try:
            config = parsed(values, names, ignored, self.arch)
        except NotTaken as reason:
            self.left_out[str(reason)] += 1
            return
        if illegal := get_op(problem.op).refuse(problem, self.arch) or legal(problem, config, gpu_for_arch(self.arch)):
            self.left_out[f"not legal here: {illegal}"] += 1
            return
        self.candidates.append(Candidate(problem, config))


class PeerFile(Protocol):
    """What a module of this room does for one kind of file."""

    NAME: str
    """As --to has it."""

    IS_FOLDER: bool
    """Whether -o names a folder: such files go by their names."""

    def is_named(self, name: str) -> bool:
        """Whether a file of this name is of this kind."""

    def read(self, text: str, where: str, name: str, arch: str | None) -> Imported:
        """The configs, or sizes, of a file. Raises InputError for what is no such file."""

    def obstacle(self, problem: GemmProblem) -> str:
        """Why no such file can speak of the problem; "" when one can."""

    def config_obstacle(self, config: Config) -> str:
        """Why the other program's kernel cannot run the config; "" when it can."""

    def render(self, sizes: Collection[TimedSize]) -> dict[str, str]:
        """The files, by name. Raises InputError where a device has no name that the other program looks for."""


class UnknownDevice(InputError):
    """A file's name says a GPU that genkern does not know, or none."""


class NotTaken(Exception):
    """Why a config that is well formed is not one of genkern's."""


def parsed(values: object, names: Mapping[str, str], ignored: Collection[str], arch: str) -> Config:
    """The config that `values` say; `names` are those of keys that are called otherwise, `ignored` say nothing more.

    Raises NotTaken for a config that genkern's kernel does not have, InputError for what is no config.
    """
    if not isinstance(values, Mapping):
        raise InputError("is no object with BLOCK_SIZE_M and so on")
    known = {key: key for key in (*_TILE, *_PLAIN)} | dict(names)
    given: dict[str, object] = {
        known.get(str(key), str(key)): value for key, value in values.items() if key not in ignored
    }
    if missing := [key for key in _TILE if key not in given]:
        raise InputError(f"has no {missing[0]}")
    if unknown := next((key for key in given if key not in known.values()), ""):
        raise NotTaken(f"{unknown[:40]} = {shown(given[unknown])}: no such option in genkern's kernel")
    given.setdefault("num_stages", _TRITONS_STAGES[gpu_for_arch(arch).vendor])
    try:
        return config_of({**given, "family": FAMILY})
    except InputError as error:
        raise NotTaken(f"no config of {FAMILY}: {error}") from None


def plain_obstacle(config: Config, splits: bool) -> str:
    """Why another program's kernel of the same kind cannot run `config`; `splits` says whether it can split K."""
    if (stem := form_of(config).stem) != FAMILY:
        return f"a config of {stem}, which is a kernel of genkern's own"
    if config.SPLIT_K > 1 and not splits:
        return "a config with SPLIT_K"
    if config.schedule_hint != "none":
        return "a config with a schedule_hint"
    return ""


def plain_values(config: Config, with_waves: bool = False) -> dict[str, int]:
    """The config under the names that all have; AMD's options where they are set, or `with_waves` always."""
    values = {name: getattr(config, name) for name in (*_TILE, *_PLAIN)}
    return {name: value for name, value in values.items() if value or (with_waves and name == "waves_per_eu")}


def arch_of(device: str, arch: str | None, where: str) -> str:
    """Returns `arch`, or the architecture of the device that a file's name says. Raises UnknownDevice."""
    if arch is not None:
        return arch
    if device in known_archs():
        return device
    gpu = gpu_named(device.replace("_", " "))
    if gpu is None:
        what = f"{device[:60]!r} is no device that genkern knows" if device else "its name says no device"
        raise UnknownDevice(f"{where}: {what}; give --arch")
    return gpu.arch
