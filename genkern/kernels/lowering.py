"""What genkern makes of a kernel's spec before Triton compiles it, and the version of that, which is in every key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from genkern.gemm.dtypes import DTYPES

# For every compile, whatever the user has set: no file of Triton's but the binary, and no place of the source in it.
SETTINGS = {"TRITON_STORE_BINARY_ONLY": "1", "TRITON_DISABLE_LINE_INFO": "1"}
# Where the user has set nothing. Triton 3.9 warns that the default of this will change; so it is in 3.6 to 3.9.
DEFAULT_SETTINGS = {"TRITON_DEFAULT_FP_FUSION": "1"}


def digest_of(files: Iterable[Path]) -> str:
    """sha256 (hex) of these files, in this order."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


# A digest and no number that somebody must remember to count up. A comment that changes costs a compile.
LOWERING = digest_of(Path(__file__).with_name(name) for name in ("lowering.py", "source.py"))


@lru_cache(maxsize=1024)
def gluon_layout(dtype: str, box: tuple[int, int]) -> Any:
    """How a box of elements of this type (Triton's name) lies in shared memory for wgmma, as this Triton says it."""
    from triton.experimental.gluon import language as gl

    (language,) = (row.language for row in DTYPES.values() if row.triton == dtype)
    return gl.NVMMASharedLayout.get_default_for(list(box), getattr(gl, language))


@lru_cache(maxsize=1024)
def with_layout(kind: str) -> str:
    """Gluon's form of a descriptor type, which names its layout in shared memory; another type is returned as it is."""
    if not kind.startswith("tensordesc<"):
        return kind
    dtype, _, shape = kind.removeprefix("tensordesc<").removesuffix("]>").partition("[")
    outer, inner = map(int, shape.split(","))
    return f"{kind.removesuffix('>')},{gluon_layout(dtype, (outer, inner))!r}>"


def with_layouts(signature: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The signature with every descriptor's layout."""
    return tuple((name, with_layout(kind)) for name, kind in signature)
