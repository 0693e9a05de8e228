"""The libraries that may win a problem, and the names of their calls in results.

A library's call is named after its library, with what tells its calls apart: `torch` has one, `cublaslt` one for each
algorithm, `cublaslt 131000 <128 hexadecimal digits>`: the library's version and its opaque cublasLtMatmulAlgo_t, which
is good for that version only (cublasLt.h). `hipblaslt 100200 <48 digits>` is the same of hipBLASLt, whose structure
begins with the solution's index. `aiter asm 5 2 NAME` is an assembly kernel of AITER's with its solidx and splits,
`aiter ck` what CK's kernels make of it, `aiter tuned skinny` what AITER's table says. Names of configs have no blanks.
Among the finals of a measured process, PyTorch's own call is VENDOR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from genkern.errors import InputError

TRITON, CUTE, TORCH, CUBLASLT, HIPBLASLT, AITER = LIBRARIES = (
    *("triton", "cute", "torch", "cublaslt", "hipblaslt", "aiter"),
)
# The vendors' libraries whose algorithms race one by one.
LT = {"nvidia": CUBLASLT, "amd": HIPBLASLT}
# All whose calls do, on GPUs of a vendor.
ONE_BY_ONE = {"nvidia": (CUBLASLT,), "amd": (HIPBLASLT, AITER)}
# Those of which calls launch winners: of AITER's that is for AITER (genkern.formats.aiter_csv).
CALLED = tuple(name for name in LIBRARIES if name != AITER)
# The languages of genkern's own kernels: what configs stand for, rather than calls of another's library.
OURS = (TRITON, CUTE)
ALL = "all"
# Of AITER's tables, besides those that are names here: its assembly kernels, CK's, and so on.
AITER_LIBTYPES = ("asm", "ck", "cktile", "skinny", "flydsl", "opus")
# The name under which PyTorch's own call of the vendor library appears among the finals.
VENDOR = "vendor"
_ALGORITHM = re.compile(rf"({CUBLASLT}|{HIPBLASLT}) ([1-9][0-9]{{0,8}}) ([0-9a-f]+)")
_AITER = re.compile(rf"{AITER} (asm [1-9][0-9]{{0,4}} [1-9][0-9]? \w{{1,200}}|tuned \w{{1,20}}|ck|cktile)")
# Of the structures that name an algorithm.
_BYTES = {CUBLASLT: 64, HIPBLASLT: 24}


@dataclass(frozen=True)
class KeptAlgorithm:
    """An algorithm as results keep it: `data` are the bytes of its structure, `version` is of the library."""

    version: int
    data: bytes
    library: str = CUBLASLT

    @property
    def name(self) -> str:
        return f"{self.library} {self.version} {self.data.hex()}"

    @property
    def solution(self) -> int | None:
        """hipBLASLt's index of the solution, by which AITER names it; None of cuBLASLt, which has none.

        Source: hipblaslt_ext::getIndexFromAlgo, which reads the first int of the structure (hipblaslt-ext.cpp).
        """
        return int.from_bytes(self.data[:4], "little", signed=True) if self.library == HIPBLASLT else None


@dataclass(frozen=True)
class AsmKernel:
    """An assembly kernel of AITER's, as results keep it: its solidx there, its splits of K, its symbol."""

    solution: int
    splits: int
    kernel: str

    @property
    def name(self) -> str:
        return f"{AITER} asm {self.solution} {self.splits} {self.kernel}"


def asm_kernel(name: str) -> AsmKernel | None:
    """What a name says of a kernel of AITER's; None for the name of anything else."""
    if not _AITER.fullmatch(name) or not name.startswith(f"{AITER} asm "):
        return None
    _, _, solution, splits, kernel = name.split()
    return AsmKernel(int(solution), int(splits), kernel)


def kept_algorithm(name: str) -> KeptAlgorithm | None:
    """What a name says of an algorithm; None for the name of anything else."""
    said = _ALGORITHM.fullmatch(name)
    if said is None or len(said[3]) != 2 * _BYTES[said[1]]:
        return None
    return KeptAlgorithm(int(said[2]), bytes.fromhex(said[3]), said[1])


def is_call(name: str) -> bool:
    """Whether results may name a library's call so."""
    return name == TORCH or kept_algorithm(name) is not None or _AITER.fullmatch(name) is not None


def library_of(name: str) -> str:
    """The library whose call has this name, in results or among the finals; for a config its kernels' language."""
    if name in (TORCH, VENDOR):
        return TORCH
    if (library := name.partition(" ")[0]) in (*LT.values(), AITER):
        return library
    return CUTE if name.startswith(f"{CUTE}_") else TRITON


def call_name(name: str) -> str:
    """The name in results of a library's call among the finals."""
    return TORCH if name == VENDOR else name


def finals_name(call: str) -> str:
    """The name among the finals of a library's call in results."""
    return VENDOR if call == TORCH else call


def parse_libraries(text: str) -> str:
    """Names of libraries, `all` or some with commas between them, as `Budget.libraries` has them.

    Each once, in the order of LIBRARIES. Raises InputError for a name that is none (--libtype has them).
    """
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name in AITER_LIBTYPES:
            raise InputError(f"--libtype: {name} is a libtype of AITER's, whose kernels race as {AITER}: give that")
        if name not in (ALL, *LIBRARIES):
            raise InputError(f"--libtype: {name[:40]!r} is none of {ALL}, {', '.join(LIBRARIES)}")
    return ",".join(name for name in LIBRARIES if name in names or ALL in names)


def named_libraries_without_kernels(text: str) -> list[str]:
    """The libraries that --libtype names and whose calls are not genkern's own kernels."""
    names = {name.strip().lower() for name in text.split(",")}
    return [name for name in LIBRARIES if name in names and name not in OURS]
