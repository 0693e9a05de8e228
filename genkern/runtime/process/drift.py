"""Drift: with what a bundle's winners were measured, where this process has something else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from genkern import __version__
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.records import CONFIG_WINS
from genkern.gemm.triton_release import triton_version
from genkern.runtime.backends.lt import backend_of
from genkern.runtime.backends.lt_api import LtError
from genkern.runtime.packed import PackedWinner
from genkern.timing.libraries import CUBLASLT, HIPBLASLT, kept_algorithm

# By the names of versions in results. Times hang on the first two; the others made the kernels, which a bundle has.
_NAMES = {"driver": "driver", CUBLASLT: "cuBLASLt", HIPBLASLT: "hipBLASLt", "triton": "Triton", "genkern": "genkern"}
_OF_TIMES = ("driver", CUBLASLT, HIPBLASLT)
# What the numbers of a library's version are divided by: of cublasLt.h and hipblaslt-version.h.
_PARTS = {CUBLASLT: 10_000, HIPBLASLT: 100_000}
# The kernel modules of drivers, by what an architecture's name begins with.
_MODULES = {"sm_": "nvidia", "gfx": "amdgpu"}

# The versions of what is here, by their names in results, for winners of an architecture.
Here = Callable[[str], Mapping[str, str]]


def nothing_known(arch: str) -> Mapping[str, str]:
    """Where nobody compares."""
    return {}


@lru_cache(maxsize=4)
def versions_here(arch: str, modules: str = "/sys/module") -> Mapping[str, str]:
    """Of this process and its machine, as far as files say it: no program is started."""
    found = {"genkern": __version__, "triton": triton_version(), "driver": _driver(arch, Path(modules))}
    backend = backend_of(arch_vendor(arch))
    with contextlib.suppress(LtError):
        found[backend.name] = str(backend.library().version)
    return {name: version for name, version in found.items() if version}


def library_version(here: Mapping[str, str]) -> int | None:
    """Of cuBLASLt or hipBLASLt, as its algorithms are kept; None where it is not known."""
    return next((int(here[name]) for name in _PARTS if name in here), None)


def is_looked_up(winner: PackedWinner, version: int | None) -> bool:
    """Whether the library's call that won is an algorithm of another version than the one here, which says again what
    it would take: that was not measured.
    """
    kept = kept_algorithm(winner.vendor)
    return kept is not None and version is not None and kept.version != version


def is_concerned(winner: PackedWinner, version: int | None) -> bool:
    """Whether its time matters: a kernel of genkern's is called, or an algorithm that nobody measured."""
    return winner.choice == CONFIG_WINS or is_looked_up(winner, version)


def drifted(winners: Iterable[PackedWinner], here: Mapping[str, str]) -> dict[str, list[str]]:
    """With what versions winners were measured that are none of these; nothing of what nobody says, nor of rows that
    leave a call to the library as it is here.
    """
    found: dict[str, set[str]] = {}
    for winner in winners:
        if not is_concerned(winner, library_version(here)):
            continue
        versions = dict(winner.versions)
        if (kept := kept_algorithm(winner.vendor)) is not None:
            versions[kept.library] = str(kept.version)
        for name in _NAMES:
            if name in here and versions.get(name, here[name]) != here[name]:
                found.setdefault(name, set()).add(versions[name])
    return {name: sorted(found[name]) for name in _NAMES if name in found}


def drift_text(winners: Iterable[PackedWinner], here: Mapping[str, str]) -> tuple[str, bool]:
    """The same for people, "" where nothing is another, and whether times hang on any of it: who takes them anew."""
    winners = list(winners)
    found = drifted(winners, here)
    said = ", ".join(
        f"{_NAMES[name]} {', '.join(_shown(name, each) for each in versions)} (here {_shown(name, here[name])})"
        for name, versions in found.items()
    )
    version = library_version(here)
    if looked_up := sum(is_looked_up(winner, version) for winner in winners):
        said += f"; {looked_up} of the library's algorithms are looked up anew, not measured"
    of_times = any(name in found for name in _OF_TIMES)
    return said + (": `genkern verify` times it anew" if of_times else ""), of_times


def _shown(name: str, version: str) -> str:
    if name not in _PARTS or not version.isdecimal():
        return version
    major, rest = divmod(int(version), _PARTS[name])
    return f"{major}.{rest // 100}.{rest % 100}"


def _driver(arch: str, modules: Path) -> str:
    module = next((name for prefix, name in _MODULES.items() if arch.startswith(prefix)), "")
    try:
        return (modules / module / "version").read_text(encoding="utf-8", errors="replace").strip()[:40]
    except OSError:
        return ""
