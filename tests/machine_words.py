"""Machine code of NVIDIA's, instruction by instruction, for tests of what reads it."""

from __future__ import annotations

import struct

ALWAYS = 7


def instruction(operation: int, predicate: int = ALWAYS) -> bytes:
    return struct.pack("<QQ", operation | predicate << 12, ALWAYS << 23)


def branch(steps: int, predicate: int = ALWAYS, long: bool = True) -> bytes:
    """BRA to the instruction `steps` from the next one, as from sm_90 on, or before."""
    distance = steps * 4
    high, low = (distance >> 8, distance & 0xFF) if long else (distance, 0)
    bits = 0x947 | predicate << 12 | low << 16 | (high & (1 << 48) - 1) << 34 | ALWAYS << 87
    return bits.to_bytes(16, "little")


def code(*parts: int | bytes) -> bytes:
    return b"".join(part if isinstance(part, bytes) else instruction(part) for part in parts)
