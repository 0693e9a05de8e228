"""What the modules for other programs' files have in common: the records of their contents, and the interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from genkern.decoding import shown
from genkern.errors import InputError
from genkern.files.config_entry import config_of
from genkern.files.timed_size import TimedSize
from genkern.gemm.config import Config
from genkern.gemm.gpus import gpu_for_arch, gpu_named, known_archs
from genkern.gemm.problem import GemmProblem
from genkern.kernels.catalogue import traits_of
from genkern.kernels.legality import legal
from genkern.ops.op import get_op

# genkern's family whose kernel corresponds to the other programs' kernels: one program per tile, pipelined pointer
# loads, tl.dot, grouped rows of tiles.
FAMILY = "tiled"
# Keys of the other programs' configs that have genkern's names, in addition to the tile.
_PLAIN = ("GROUP_SIZE_M", "num_warps", "num_stages", "waves_per_eu", "matrix_instr_nonkdim", "kpack")
_TILE = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K")
# Triton's default of num_stages, for configs without it.
_TRITONS_STAGES = {"amd": 2, "nvidia": 3}


@dataclass(frozen=True)
class Candidate:
    """A size in a file with the file's config for it; None if genkern cannot run the config."""

    problem: GemmProblem
    config: Config | None = None


@dataclass
class Imported:
    """The contents of a file.

    arch: the architecture that they are for
    candidates: sizes with their configs, in the order of the file
    left_out: number of entries that were not taken, by reason
    notes: number of entries that were taken differently from how they are written, by reason
    """

    arch: str
    candidates: list[Candidate] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def take(self, problem: GemmProblem, values: object, names: Mapping[str, str], ignored: Collection[str]) -> None:
        """Add a config if it is legal for the problem, else count why it is not added. Raises InputError as `parsed`
        does."""
        try:
            config = parsed(values, names, ignored, self.arch)
        except UnsupportedConfig as reason:
            self.left_out[str(reason)] += 1
            return
        if illegal := get_op(problem.op).refuse(problem, self.arch) or legal(problem, config, gpu_for_arch(self.arch)):
            self.left_out[f"not legal here: {illegal}"] += 1
            return
        self.candidates.append(Candidate(problem, config))


class PeerFile(Protocol):
    """The functions that a module of this package provides for one kind of file."""

    NAME: str
    """The value of --to for this kind."""

    IS_FOLDER: bool
    """Whether -o names a folder, since the other program finds such files by their names."""

    def is_named(self, name: str) -> bool:
        """Return True if a file of this name is of this kind."""

    def read(self, text: str, where: str, name: str, arch: str | None) -> Imported:
        """Return the configs, or sizes, of a file. Raises InputError if it is not of this kind."""

    def obstacle(self, problem: GemmProblem) -> str:
        """Return why no file of this kind can express the problem; "" if one can."""

    def config_obstacle(self, config: Config) -> str:
        """Return why the other program's kernel cannot run the config; "" if it can."""

    def render(self, sizes: Collection[TimedSize]) -> dict[str, str]:
        """Return the files, by name. Raises InputError if the other program has no name for a device."""


class UnknownDevice(InputError):
    """The name of a file has no GPU that genkern knows."""


class UnsupportedConfig(Exception):
    """genkern's kernel cannot run a config; the message says why."""


def parsed(values: object, names: Mapping[str, str], ignored: Collection[str], arch: str) -> Config:
    """Return the config in `values`.

    `names` maps keys to genkern's names if they differ; keys in `ignored` add nothing. Raises InputError if `values` is
    not an object or lacks a side of the tile, and UnsupportedConfig for any other config that genkern's kernel cannot
    run.
    """
    if not isinstance(values, Mapping):
        raise InputError("is not an object with BLOCK_SIZE_M and so on")
    known = {key: key for key in (*_TILE, *_PLAIN)} | dict(names)
    given: dict[str, object] = {
        known.get(str(key), str(key)): value for key, value in values.items() if key not in ignored
    }
    if missing := [key for key in _TILE if key not in given]:
        raise InputError(f"has no {missing[0]}")
    if unknown := next((key for key in given if key not in known.values()), ""):
        raise UnsupportedConfig(f"{unknown[:40]} = {shown(given[unknown])}: no such option in genkern's kernel")
    given.setdefault("num_stages", _TRITONS_STAGES[gpu_for_arch(arch).vendor])
    try:
        return config_of({**given, "family": FAMILY})
    except InputError as error:
        raise UnsupportedConfig(f"no config of {FAMILY}: {error}") from None


def plain_obstacle(config: Config, splits: bool) -> str:
    """Return why another program's kernel of the same kind cannot run `config`; "" if it can. `splits`: it can split
    K."""
    if (stem := traits_of(config).stem) != FAMILY:
        return f"a config of {stem}, which is a kernel of genkern's own"
    if config.SPLIT_K > 1 and not splits:
        return "a config with SPLIT_K"
    if config.schedule_hint != "none":
        return "a config with a schedule_hint"
    return ""


def plain_values(config: Config, with_waves: bool = False) -> dict[str, int]:
    """Return the config under the common names.

    AMD's options are included if they are set; `with_waves` always includes waves_per_eu.
    """
    values = {name: getattr(config, name) for name in (*_TILE, *_PLAIN)}
    return {name: value for name, value in values.items() if value or (with_waves and name == "waves_per_eu")}


def arch_of(device: str, arch: str | None, where: str) -> str:
    """Return `arch`, or the architecture of the device in a file's name. Raises UnknownDevice."""
    if arch is not None:
        return arch
    if device in known_archs():
        return device
    gpu = gpu_named(device.replace("_", " "))
    if gpu is None:
        what = f"{device[:60]!r} is not a device that genkern knows" if device else "its name has no device"
        raise UnknownDevice(f"{where}: {what}; give --arch")
    return gpu.arch
