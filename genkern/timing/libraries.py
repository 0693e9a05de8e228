"""The libraries that may win a problem, and the names of their calls in results.

A library's call is named after its library, with what tells its calls apart: `torch` has one, `cublaslt` one for each
algorithm, `cublaslt 131000 <128 hexadecimal digits>`: the library's version and its opaque cublasLtMatmulAlgo_t, which
is good for that version only (cublasLt.h). Names of configs have no blanks. Among the finals of a measured process,
PyTorch's own call is VENDOR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from genkern.errors import InputError

TRITON, CUTE, TORCH, CUBLASLT = LIBRARIES = ("triton", "cute", "torch", "cublaslt")
# The languages of genkern's own kernels: what configs stand for, rather than calls of another's library.
OURS = (TRITON, CUTE)
ALL = "all"
# The name under which PyTorch's own call of the vendor library appears among the finals.
VENDOR = "vendor"
_ALGORITHM = re.compile(rf"{CUBLASLT} ([1-9][0-9]{{0,8}}) ([0-9a-f]{{128}})")


@dataclass(frozen=True)
class KeptAlgorithm:
    """An algorithm of cuBLASLt as results keep it: `data` are its 64 bytes, `version` is of the library."""

    version: int
    data: bytes

    @property
    def name(self) -> str:
        return f"{CUBLASLT} {self.version} {self.data.hex()}"


def kept_algorithm(name: str) -> KeptAlgorithm | None:
    """What a name says of an algorithm; None for the name of anything else."""
    said = _ALGORITHM.fullmatch(name)
    return KeptAlgorithm(int(said[1]), bytes.fromhex(said[2])) if said else None


def is_call(name: str) -> bool:
    """Whether results may name a library's call so."""
    return name == TORCH or kept_algorithm(name) is not None


def library_of(name: str) -> str:
    """The library whose call has this name, in results or among the finals; for a config its kernels' language."""
    if name in (TORCH, VENDOR):
        return TORCH
    if name.partition(" ")[0] == CUBLASLT:
        return CUBLASLT
    return CUTE if name.startswith(f"{CUTE}_") else TRITON


def call_name(name: str) -> str:
    """The name in results of a library's call among the finals."""
    return TORCH if name == VENDOR else name


def parse_libraries(text: str) -> str:
    """Names of libraries, `all` or some with commas between them, as `Budget.libraries` has them.

    Each once, in the order of LIBRARIES. Raises InputError for a name that is none (--libtype has them).
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in (ALL, *LIBRARIES):
            raise InputError(f"--libtype: {name[:40]!r} is none of {ALL}, {', '.join(LIBRARIES)}")
    return ",".join(name for name in LIBRARIES if name in names or ALL in names)
