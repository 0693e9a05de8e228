"""A stand-in for what CuTe DSL makes: cubins with a kernel's name and parameters, and no code that would run.

What is around them (addresses, plans, packing, launching) is tested with these where the DSL is not installed, as in
continuous integration.
"""

from __future__ import annotations

import importlib.util
import json
import struct
from collections.abc import Sequence

import pytest

from genkern.compile.binary.code_object import read_resources
from genkern.compile.cache import BinaryCache
from genkern.compile.farm import Farm
from genkern.gemm.records import Binary
from genkern.kernels.contract.argument import Constant, Map, Pointer, Workspace
from genkern.kernels.kernel import KernelSpec, Target, symbol_of
from genkern.kernels.plan import PlannedLaunch

needs_dsl = pytest.mark.skipif(
    importlib.util.find_spec("cutlass") is None, reason="CuTe DSL is not installed (pip install '.[cute]')"
)
_EM_CUDA, _REGCOUNT, _KPARAM_INFO = 190, 0x2F, 0x17


def cubin(symbol: str, parameter_bytes: Sequence[int], registers: int = 168) -> bytes:
    """An ELF file that declares a kernel as a cubin does: its registers, and the size of each parameter."""
    attribute = lambda kind, data: struct.pack("<BBH", 4, kind, len(data)) + data  # noqa: E731
    at, kinds = 0, b""
    for ordinal, size in enumerate(parameter_bytes):
        kinds += attribute(_KPARAM_INFO, struct.pack("<IHHI", 0, ordinal, at, size << 18))
        at += size
    sections = {
        "": b"",
        ".nv.info": attribute(_REGCOUNT, struct.pack("<II", 1, registers)),
        f".nv.info.{symbol}": kinds,
        f".text.{symbol}": b"\x90" * 16,
    }
    names, places = b"", {}
    for name in (*sections, ".shstrtab"):
        places[name] = len(names)
        names += name.encode() + b"\0"
    body, headers = b"", b""
    for name, data in {**sections, ".shstrtab": names}.items():
        headers += struct.pack("<IIQQQQIIQQ", places[name], 1, 0, 0, 64 + len(body), len(data), 0, 0, 1, 0)
        body += data
    count = len(sections) + 1
    start = struct.pack(
        "<6s10xHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01",
        2,
        _EM_CUDA,
        1,
        0,
        0,
        64 + len(body),
        0,
        64,
        56,
        0,
        64,
        count,
        count - 1,
    )
    return start + body + headers


def parameter_bytes(launch: PlannedLaunch) -> list[int]:
    """Of the parameters that a launch of a plan passes to a kernel."""
    given = (argument for argument in launch.arguments if not isinstance(argument, Constant))
    return [128 if isinstance(each, Map) else 8 if isinstance(each, (Pointer, Workspace)) else 4 for each in given]


def put(cache: BinaryCache, key: str, spec: KernelSpec) -> Binary:
    """What the DSL, or Triton, would have compiled of a spec, in the cache."""
    constants = dict(spec.constants)
    # Kernels beside products have none.
    binary = constants.get("BINARY")
    symbol = spec.function if binary is None else symbol_of(spec.function, str(binary), spec.language)
    sizes = [128 if kind.startswith("tensormap<") else 8 if kind.startswith("*") else 4 for _, kind in spec.signature]
    image = cubin(symbol, sizes)
    shared_bytes = int(constants.get("shared_bytes", 0))
    num_warps = constants["warps"] if spec.language == "cute" else dict(spec.options)["num_warps"]
    said = {"name": symbol, "num_warps": num_warps, "shared": shared_bytes, "language": spec.language}
    files = {"kernel.cubin": image, "kernel.json": json.dumps(said).encode()}
    resources = read_resources(image, "cuda", shared_bytes)
    return cache.put(key, spec, symbol, resources, files)


class StandInFarm(Farm):
    """A farm for sm_90 that compiles nothing."""

    def __init__(self, cache: BinaryCache) -> None:
        super().__init__(cache, Target("cuda", 90, 32), "3.7.1", jobs=1, timeout_s=60)

    def order(self, owner, jobs, tell):  # type: ignore[no-untyped-def]
        for _, job in jobs:
            tell(job.key, put(self.cache, job.key, job.spec))
