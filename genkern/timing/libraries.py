"""The libraries that may win a problem, and the names of their calls in results.

The name of a library call starts with the library. `torch` has one call. `cublaslt` has one per algorithm, `cublaslt
131000 <128 hexadecimal digits>`: the library's version and its opaque cublasLtMatmulAlgo_t, which is valid only for
that version (cublasLt.h). `hipblaslt 100200 <48 digits>` is the same for hipBLASLt, whose structure begins with the
solution's index. `aiter asm 5 2 NAME` is an assembly kernel of AITER with its solidx and splits; `aiter ck` and
`aiter cktile` are the calls of CK's kernels; `aiter tuned LIBTYPE` is the kernel that AITER's own table selects. Names
of configs contain no spaces. The finals of a measured process call `torch` VENDOR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from genkern.errors import InputError

TRITON, CUTE, TORCH, CUBLASLT, HIPBLASLT, AITER = LIBRARIES = (
    *("triton", "cute", "torch", "cublaslt", "hipblaslt", "aiter"),
)
# Libraries whose algorithms race one by one, by vendor of the GPU.
LT = {"nvidia": CUBLASLT, "amd": HIPBLASLT}
# All libraries whose calls race one by one, by vendor.
ONE_BY_ONE = {"nvidia": (CUBLASLT,), "amd": (HIPBLASLT, AITER)}
# Libraries whose calls a dispatcher makes. AITER's calls are written for AITER itself (genkern.files.aiter_csv).
CALLED = tuple(name for name in LIBRARIES if name != AITER)
# Languages of genkern's own kernels: configs belong to them, library calls do not.
OURS = (TRITON, CUTE)
ALL = "all"
# Kernel types in AITER's tables that are not library names here: its assembly kernels, CK's, and so on.
AITER_LIBTYPES = ("asm", "ck", "cktile", "skinny", "flydsl", "opus")
# Name of PyTorch's own call of the vendor library in the finals.
VENDOR = "vendor"
_ALGORITHM = re.compile(rf"({CUBLASLT}|{HIPBLASLT}) ([1-9][0-9]{{0,8}}) ([0-9a-f]+)")
_AITER = re.compile(rf"{AITER} (asm [1-9][0-9]{{0,4}} [1-9][0-9]? \w{{1,200}}|tuned \w{{1,20}}|ck|cktile)")
# Bytes of the structure that names an algorithm.
_BYTES = {CUBLASLT: 64, HIPBLASLT: 24}


@dataclass(frozen=True)
class StoredAlgorithm:
    """An algorithm as stored in results: the bytes (`data`) of its structure, and the `version` of its library."""

    version: int
    data: bytes
    library: str = CUBLASLT

    @property
    def name(self) -> str:
        return f"{self.library} {self.version} {self.data.hex()}"

    @property
    def solution(self) -> int | None:
        """hipBLASLt's index of the solution, by which AITER names it; None for cuBLASLt, which has no index.

        Source: hipblaslt_ext::getIndexFromAlgo, which reads the first int of the structure (hipblaslt-ext.cpp).
        """
        return int.from_bytes(self.data[:4], "little", signed=True) if self.library == HIPBLASLT else None


@dataclass(frozen=True)
class AsmKernel:
    """An assembly kernel of AITER as stored in results: its solidx, its splits of K, its symbol."""

    solution: int
    splits: int
    kernel: str

    @property
    def name(self) -> str:
        return f"{AITER} asm {self.solution} {self.splits} {self.kernel}"


def asm_kernel(name: str) -> AsmKernel | None:
    """Parse the name of an assembly kernel of AITER; None for any other name."""
    if not _AITER.fullmatch(name) or not name.startswith(f"{AITER} asm "):
        return None
    _, _, solution, splits, kernel = name.split()
    return AsmKernel(int(solution), int(splits), kernel)


def stored_algorithm(name: str) -> StoredAlgorithm | None:
    """Parse the name of an algorithm; None for any other name."""
    said = _ALGORITHM.fullmatch(name)
    if said is None or len(said[3]) != 2 * _BYTES[said[1]]:
        return None
    return StoredAlgorithm(int(said[2]), bytes.fromhex(said[3]), said[1])


def is_call(name: str) -> bool:
    """Return True if `name` is a valid name of a library call in results."""
    return name == TORCH or stored_algorithm(name) is not None or _AITER.fullmatch(name) is not None


def library_of(name: str) -> str:
    """Return the library of a call's name, in results or in the finals; for a config, the language of its kernels."""
    if name in (TORCH, VENDOR):
        return TORCH
    if (library := name.partition(" ")[0]) in (*LT.values(), AITER):
        return library
    return CUTE if name.startswith(f"{CUTE}_") else TRITON


def call_name(name: str) -> str:
    """Convert the name of a library call in the finals to its name in results."""
    return TORCH if name == VENDOR else name


def finals_name(call: str) -> str:
    """Convert the name of a library call in results to its name in the finals."""
    return VENDOR if call == TORCH else call


def parse_libraries(text: str) -> str:
    """Parse `all`, or library names separated by commas, into the form of `Budget.libraries`.

    Each library appears once, in the order of LIBRARIES. Raises InputError for an unknown name; its message names
    --libtype.
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name in AITER_LIBTYPES:
            raise InputError(f"--libtype: {name} is a libtype of AITER, whose kernels race as {AITER}: use {AITER}")
        if name not in (ALL, *LIBRARIES):
            raise InputError(f"--libtype: {name[:40]!r} is not one of {ALL}, {', '.join(LIBRARIES)}")
    return ",".join(name for name in LIBRARIES if name in names or ALL in names)


def named_libraries_without_kernels(text: str) -> list[str]:
    """Return the libraries that --libtype names and that are not genkern's own kernels."""
    names = {name.strip().lower() for name in text.split(",")}
    return [name for name in LIBRARIES if name in names and name not in OURS]
