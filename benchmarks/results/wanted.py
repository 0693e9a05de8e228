"""Wanted: the results files of a device and the sizes that each is to have, as provenance.yaml says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.kernels.unfriendly import drawn
from genkern.errors import InputError
from genkern.file_io import read_text
from genkern.files.sizes import GemmDefaults, read_sizes
from genkern.gemm.problem import GemmProblem

# So many sizes are drawn from a seed.
DRAWN = 60


@dataclass(frozen=True)
class Wanted:
    """What is to lie in `folder`: files by name, the most important one first, each with its sizes in their order.

    `device` is the name of the device of all rows, as its driver has it, `arch` its architecture.
    """

    folder: Path
    device: str
    arch: str
    options: tuple[str, ...]
    files: Mapping[str, tuple[GemmProblem, ...]]

    @property
    def problems(self) -> tuple[GemmProblem, ...]:
        """The sizes of all files, each once: several files may share some."""
        return tuple(dict.fromkeys(problem for problems in self.files.values() for problem in problems))

    def problems_of(self, names: Sequence[str]) -> tuple[GemmProblem, ...]:
        """The sizes of these files, named without .yaml too. Raises InputError for a file that is not there."""
        known = {name.removesuffix(".yaml"): problems for name, problems in self.files.items()}
        if unknown := [name for name in names if name.removesuffix(".yaml") not in known]:
            raise InputError(f"--first {unknown[0]}: there is no such file; there are {', '.join(known)}")
        return tuple(problem for name in names for problem in known[name.removesuffix(".yaml")])


def read_wanted(results: Path, folder: str) -> Wanted:
    """What results/provenance.yaml wants in `folder`, of which it says `device`, `arch`, `options` and `files`.

    `sizes` of a file lists files of sizes, by their paths from the project's root, `{list: FILE, accumulate: full}` for
    one that is to be of full sums, and `{seed: N}` for the first DRAWN sizes that benchmarks.kernels.unfriendly draws;
    without it they are those that the results file has.
    Raises InputError.
    """
    path = results / "provenance.yaml"
    said = yaml.safe_load(read_text(str(path)))
    if folder not in said:
        raise InputError(f"{path}: says nothing of {folder}; it has {', '.join(said)}")
    of_device: Mapping[str, Any] = said[folder]
    own = results / folder
    files = {
        name: _sizes(facts.get("sizes") or [own / name], results.parent, of_device["arch"])
        for name, facts in of_device["files"].items()
    }
    return Wanted(own, of_device["device"], of_device["arch"], tuple(of_device["options"].split()), files)


def _sizes(sources: Sequence[Any], root: Path, arch: str) -> tuple[GemmProblem, ...]:
    found: dict[GemmProblem, None] = {}
    for source in sources:
        if not isinstance(source, Mapping):
            source = {"list": source}
        if "seed" in source:
            found |= dict.fromkeys(drawn(source["seed"], DRAWN))
        else:
            own = tuple((key, value) for key, value in source.items() if key != "list")
            found |= dict.fromkeys(read_sizes(str(root / source["list"]), GemmDefaults(own=own), arch).problems)
    return tuple(found)


def device_here(results: Path, name: str) -> str:
    """The folder that provenance.yaml has for the device that its driver calls `name`; the first one else."""
    said: Mapping[str, Mapping[str, Any]] = yaml.safe_load(read_text(str(results / "provenance.yaml")))
    return next((folder for folder, of_device in said.items() if of_device["device"] == name), next(iter(said)))
