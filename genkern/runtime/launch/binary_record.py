"""Reads what a launch must know about a binary from its cache entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from genkern.compile.binary.code_object import read_parameter_bytes
from genkern.errors import ResultsError
from genkern.gemm.dtypes import DTYPES
from genkern.kernels.contract.argument import Descriptor, Map
from genkern.kernels.plan import PlannedLaunch
from genkern.runtime.bundles.records import Encoding, PackedBinary


def described(
    folder: str | Path, launch: PlannedLaunch, dtypes: Mapping[str, str], backend: str, warp_size: int
) -> tuple[PackedBinary, bytes]:
    """Return the binary of `launch` in this cache entry, and its file's content.

    dtypes: the type of each operand, by name.
    backend: Triton's name of the backend, "cuda" or "hip".

    Raises ResultsError for a binary that cannot be launched from a plan alone, or whose descriptors differ from the
    plan's.
    """
    folder = Path(folder)
    image = (folder / f"kernel.{'hsaco' if backend == 'hip' else 'cubin'}").read_bytes()
    said = json.loads((folder / "kernel.json").read_bytes())
    if said.get("global_scratch_size") or said.get("profile_scratch_size"):
        raise ResultsError(f"{launch.symbol} needs scratch memory of Triton, which bundles cannot provide")
    sha256 = hashlib.sha256(image).hexdigest()
    packed = PackedBinary(
        sha256,
        launch.symbol,
        int(said["num_warps"]) * warp_size,
        int(said["shared"]),
        read_parameter_bytes(image, backend, launch.symbol),
        _encodings(launch, dtypes, said.get("tensordesc_meta") or []),
    )
    return packed, image


def _encodings(
    launch: PlannedLaunch, dtypes: Mapping[str, str], said: Sequence[Mapping[str, object]]
) -> tuple[Encoding, ...]:
    """Return the encodings of the launch's descriptors in their order: from the plan, or as Triton has chosen them."""
    found, by_triton = [], list(said)
    for argument in launch.arguments:
        if isinstance(argument, Map):
            rows, columns = (int(str(size)) for size in argument.box)
            swizzle = argument.swizzle
        elif isinstance(argument, Descriptor):
            if not by_triton:
                raise ResultsError(f"{launch.symbol} has fewer descriptors than its plan ({argument.name})")
            form = by_triton.pop(0)
            rows, columns = (int(str(size)) for size in form["block_size"])  # type: ignore[attr-defined]
            swizzle = int(str(form["swizzle"]))
        else:
            continue
        dtype = DTYPES[dtypes[argument.operand]]
        found.append(Encoding(dtype.tensor_map, dtype.size_bytes, (rows, columns), swizzle))
    if by_triton:
        raise ResultsError(f"{launch.symbol} has {len(by_triton)} descriptors more than its plan")
    return tuple(found)
