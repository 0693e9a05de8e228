"""The `hipblaslt` backend: solutions that AMD's hipBLASLt offers for a GEMM. It has never run on AMD hardware.

Like cublaslt.py, it calls the library that PyTorch has loaded through ctypes. The heuristic's solutions come first.
Further ones are drawn evenly from all that the library lists, since neighbours in its list are alike; the library is
asked whether each of them supports the product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from genkern.runtime.backends import hipblaslt_library
from genkern.runtime.backends.hipblaslt_api import DIALECT, Api
from genkern.runtime.backends.lt_backend import Backend
from genkern.runtime.backends.lt_matmul import WORKSPACE_BYTES, Algorithm, Matmul, Pointers

# Solutions requested from the heuristic. The library lists hundreds per type, and a launch of each takes about 0.1 ms.
ASKED = 64
MOST = 256
MOST_CHECKS = 8192


def beyond(
    matmul: Matmul,
    pointers: Pointers,
    known: Sequence[Algorithm],
    most: int,
    workspace_bytes: int = WORKSPACE_BYTES,
    most_checks: int = MOST_CHECKS,
) -> list[Algorithm]:
    """Return up to `most` solutions that run and are not in `known`, found with at most `most_checks` checks."""
    library, operation = cast(Api, matmul.library), matmul.operation
    if not library.lists_all:
        return []
    operations = [DIALECT.operations[each] for each in (operation.transposed_a, operation.transposed_b)]
    types = operation.a.dtype, operation.b.dtype, operation.d.dtype, operation.d.dtype, operation.compute
    seen = {_solution(algorithm.data) for algorithm in known}
    found: list[Algorithm] = []
    for checks, data in enumerate(evenly(library.all_algorithms(matmul.handle, operations, types))):
        if len(found) == most or checks == most_checks:
            break
        if _solution(data) in seen:
            continue
        seen.add(_solution(data))
        able = checked(matmul, Algorithm(data, 0, source="enumerated"), pointers)
        if able is not None and able.workspace_bytes <= workspace_bytes:
            found.append(able)
    return found


def checked(matmul: Matmul, algorithm: Algorithm, pointers: Pointers) -> Algorithm | None:
    """Return the algorithm with the workspace that it needs here; None if the library says that it does not run.

    If the library cannot say that about a single solution, only the heuristic's solutions count as running.
    """
    library = cast(Api, matmul.library)
    if not library.lists_all:
        every = matmul.heuristic(pointers, WORKSPACE_BYTES, MOST)
        same = next((each for each in every if each.data == algorithm.data), None)
        return None if same is None else Algorithm(same.data, same.workspace_bytes, same.waves, algorithm.source)
    needed = library.supported(matmul.product_arguments(pointers), algorithm.algo)
    return None if needed is None else Algorithm(algorithm.data, needed, source=algorithm.source)


def evenly(items: Sequence[bytes]) -> Iterator[bytes]:
    """Yield every item once so that each prefix covers the whole: every 64th, those halfway between, and so on."""
    step = 64
    yield from items[::step]
    while step > 1:
        yield from items[step // 2 :: step]
        step //= 2


def _solution(data: bytes) -> bytes:
    """Return the bytes of the index that identifies a solution."""
    return data[:4]


# Builds with the same version may have different solutions under one index (hipblasLtGetGitRevision tells builds
# apart).
BACKEND = Backend(
    *(DIALECT, lambda: hipblaslt_library.load(), checked, beyond), most=MOST, asked=ASKED, version_is_build=False
)
