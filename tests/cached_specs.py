"""What is written beside a cached binary of the kernel that it was compiled from."""

from __future__ import annotations

import json
from pathlib import Path

from genkern.compile.cache import _RECORD
from genkern.kernels.kernel import KernelSpec


def read_spec(entry: str | Path) -> KernelSpec:
    """What the binary in this entry of the cache was compiled from."""
    values = json.loads((Path(entry) / _RECORD).read_bytes())["spec"]
    of_pairs = "signature", "constants", "divisible", "options"
    pairs = {name: tuple((str(k), v) for k, v in values[name]) for name in of_pairs}
    return KernelSpec(
        values["function"],
        values["source_sha256"],
        language=values.get("language", "triton"),
        file=values.get("file", ""),
        **pairs,
    )
