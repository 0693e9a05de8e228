"""What genkern makes of a kernel's spec before Triton compiles it, and the version of that, which is in every key."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

# For every compile, whatever the user has set: no file of Triton's but the binary, and no place of the source in it.
SETTINGS = {"TRITON_STORE_BINARY_ONLY": "1", "TRITON_DISABLE_LINE_INFO": "1"}
# Where the user has set nothing. Triton 3.9 warns that the default of this will change; so it is in 3.6 to 3.9.
DEFAULT_SETTINGS = {"TRITON_DEFAULT_FP_FUSION": "1"}
# Integers have another name in signatures than among Triton's types.
_TYPES = {"i8": "int8", "i32": "int32"}


def digest_of(files: Iterable[Path]) -> str:
    """sha256 (hex) of these files, in this order."""
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()


# A digest and no number that somebody must remember to count up. A comment that changes costs a compile.
LOWERING = digest_of(Path(__file__).with_name(name) for name in ("lowering.py", "source.py"))


@lru_cache(maxsize=1024)
def with_layout(kind: str, cluster: int) -> str:
    """Gluon's form of a descriptor type, which names its layout in shared memory as this Triton writes it.

    Each of the `cluster` programs of a cluster has all of it. Another type is returned as it is.
    """
    if not kind.startswith("tensordesc<"):
        return kind
    from triton.experimental.gluon import language as gl

    dtype, _, shape = kind.removeprefix("tensordesc<").removesuffix("]>").partition("[")
    element = gl.dtype(_TYPES.get(dtype, dtype))
    layout = gl.NVMMASharedLayout.get_default_for([int(size) for size in shape.split(",")], element)
    if cluster > 1:
        # Not for get_default_for: Triton 3.6 takes it for a block that is cut into pieces.
        everywhere = [[0, 0]] * (cluster.bit_length() - 1)
        layout = gl.NVMMASharedLayout(
            layout.swizzle_byte_width, element.primitive_bitwidth, rank=2, cga_layout=everywhere
        )
    return f"{kind.removesuffix('>')},{layout!r}>"


def with_layouts(
    signature: Iterable[tuple[str, str]], options: Iterable[tuple[str, int | str]]
) -> tuple[tuple[str, str], ...]:
    """The signature with every descriptor's layout; `options` say how many programs a cluster has."""
    cluster = int(dict(options).get("num_ctas", 1))
    return tuple((name, with_layout(kind, cluster)) for name, kind in signature)
