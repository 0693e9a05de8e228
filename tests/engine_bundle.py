"""A bundle's file for the stand-in of vLLM, and the context in which its kernels compute."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from computing_gpu import PlannedBundle, computing_gpu, planned, planned_row

from genkern.gemm.problem import GemmProblem
from genkern.runtime.bundles.bundle import read_bundle, write_bundle
from genkern.runtime.bundles.records import from_data, to_data
from genkern.runtime.calls.context import Context

# (N, K) of the stand-in's layers that have winners, and for which M.
SIZES, ROWS = ((256, 128), (128, 256)), (1, 4)


def _planned() -> tuple[Any, dict[str, Any], dict[str, bytes]]:
    """The contents, what the kernels compute, and files of binaries, by sha256."""
    problems = [GemmProblem(m, n, k) for n, k in SIZES for m in ROWS]
    bundle, kernels = planned([planned_row(each) for each in problems])
    text, renamed, images = json.dumps(to_data(bundle.contents)), {}, {}
    for name, kernel in kernels.items():
        image = name.encode()
        real = hashlib.sha256(image).hexdigest()
        text, renamed[real], images[real] = text.replace(name, real), kernel, image
    return from_data(json.loads(text)), renamed, images


def write(path: str) -> None:
    """Write the bundle."""
    contents, _, images = _planned()
    write_bundle(path, contents, images)


def context_of(path: str) -> Context:
    """Calls find the winners of the file, which compute with PyTorch."""
    _, kernels, _ = _planned()
    gpu = computing_gpu(kernels)
    bundle = PlannedBundle(path, read_bundle(path).contents, None)  # type: ignore[arg-type]
    return Context(lambda op: [bundle], lambda index: gpu)
