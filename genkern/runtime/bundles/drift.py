"""Drift: differences between the software that measured a bundle's winners and the software of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from genkern import __version__
from genkern.gemm.gpu import arch_vendor
from genkern.gemm.records import CONFIG_WINS
from genkern.gemm.triton_release import triton_version
from genkern.result.result import Result
from genkern.runtime.backends.lt import backend_of
from genkern.runtime.backends.lt_api import LtError
from genkern.timing.libraries import CUBLASLT, HIPBLASLT, stored_algorithm

# Names of versions in results. Times depend on drivers and libraries; Triton and genkern only made the kernels, which
# the bundle contains.
_NAMES = {"driver": "driver", CUBLASLT: "cuBLASLt", HIPBLASLT: "hipBLASLt", "triton": "Triton", "genkern": "genkern"}
_OF_TIMES = ("driver", CUBLASLT, HIPBLASLT)
# The major version is the number divided by this (cublasLt.h, hipblaslt-version.h).
_PARTS = {CUBLASLT: 10_000, HIPBLASLT: 100_000}
# The kernel module of the driver, by the prefix of the architecture's name.
_MODULES = {"sm_": "nvidia", "gfx": "amdgpu"}

# Returns the versions of this process for an architecture, by their names in results.
Here = Callable[[str], Mapping[str, str]]


def no_versions(arch: str) -> Mapping[str, str]:
    """Return no versions, so that nothing is compared."""
    return {}


@lru_cache(maxsize=4)
def versions_here(arch: str, modules: str = "/sys/module") -> Mapping[str, str]:
    """Return the versions of this process and machine as far as files and the vendor's library tell them.

    No program is started.
    """
    found = {"genkern": __version__, "triton": triton_version(), "driver": _driver(arch, Path(modules))}
    backend = backend_of(arch_vendor(arch))
    with contextlib.suppress(LtError):
        found[backend.name] = str(backend.library().version)
    return {name: version for name, version in found.items() if version}


def library_version(here: Mapping[str, str]) -> int | None:
    """Return the version of cuBLASLt or hipBLASLt as results store it; None if unknown."""
    return next((int(here[name]) for name in _PARTS if name in here), None)


def is_looked_up(winner: Result, version: int | None) -> bool:
    """Return True if the library's winning algorithm belongs to another version of the library.

    The heuristic of this process's library then selects an algorithm, which was not measured.
    """
    kept = stored_algorithm(winner.vendor)
    return kept is not None and version is not None and kept.version != version


def is_concerned(winner: Result, version: int | None) -> bool:
    """Return True if drift matters for the winner: it calls a genkern kernel, or an algorithm that was not measured."""
    return winner.choice == CONFIG_WINS or is_looked_up(winner, version)


def drifted(winners: Iterable[Result], here: Mapping[str, str]) -> dict[str, list[str]]:
    """Return, by name, the versions with which winners were measured if they differ from this process's.

    Versions that are unknown on either side are left out, and so are winners that leave a call to this process's
    library (`is_concerned`).
    """
    found: dict[str, set[str]] = {}
    for winner in winners:
        if not is_concerned(winner, library_version(here)):
            continue
        versions = dict(winner.versions)
        if (kept := stored_algorithm(winner.vendor)) is not None:
            versions[kept.library] = str(kept.version)
        for name in _NAMES:
            if name in here and versions.get(name, here[name]) != here[name]:
                found.setdefault(name, set()).add(versions[name])
    return {name: sorted(found[name]) for name in _NAMES if name in found}


def drift_text(winners: Iterable[Result], here: Mapping[str, str]) -> tuple[str, bool]:
    """Return the drift as text ("" if there is none), and True if measured times may have changed."""
    winners = list(winners)
    found = drifted(winners, here)
    said = ", ".join(
        f"{_NAMES[name]} {', '.join(_shown(name, each) for each in versions)} (here {_shown(name, here[name])})"
        for name, versions in found.items()
    )
    version = library_version(here)
    if looked_up := sum(is_looked_up(winner, version) for winner in winners):
        said += f"; {looked_up} of the library's algorithms are looked up, not measured"
    of_times = any(name in found for name in _OF_TIMES)
    return said + (": `genkern verify` measures again" if of_times else ""), of_times


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
