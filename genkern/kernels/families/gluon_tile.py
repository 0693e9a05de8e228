"""What the tiles of the kernels in Gluon are made of: buffers of a ring, and parts that copies take to C."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes along K of a buffer of a Gluon kernel's ring: those that are swizzled.
_RING_BYTES = 128


@dataclass(frozen=True)
class Part:
    """Columns of a tile that a copy takes to C: the first of them and how many; `owner` is a program of the cluster."""

    owner: int
    offset: int
    width: int


def owned_eights(width: int, cluster: int) -> tuple[range, ...]:
    """For each program of a cluster, the columns that it stores, by eights: equal shares, but for one of them."""
    eights = width // 8
    return tuple(range(i * eights // cluster, (i + 1) * eights // cluster) for i in range(cluster))


def parts_of(width: int, cluster: int = 1) -> tuple[Part, ...]:
    """What each copy to C takes: of each program's columns the powers of two that they add up to, largest first.

    As parts_of in the generated module (templates/gemm/parts.py.j2).
    """
    parts: list[Part] = []
    for owner, columns in enumerate(owned_eights(width, cluster)):
        offset = 8 * columns.start
        for size in powers_of(8 * len(columns)):
            parts.append(Part(owner, offset, size))
            offset += size
    return tuple(parts)


def ring_k(element_bytes: int) -> int:
    """Elements along K of a buffer of a Gluon kernel's ring."""
    return _RING_BYTES // element_bytes


def buffer_bytes(rows: int, width: int) -> int:
    """Of one buffer of a Gluon kernel's ring: 128 for each row and column of the tile."""
    return (rows + width) * _RING_BYTES


def landing_bytes(rows: int, width: int, cluster: int) -> int:
    """Of shared memory where a program of a cluster finds the others' sums of the columns that it stores, 4 each."""
    return (cluster - 1) * rows * 8 * -(-width // (8 * cluster)) * 4


def powers_of(width: int) -> tuple[int, ...]:
    """The powers of two, largest first, that add up to a multiple of 8 up to 256."""
    return tuple(1 << bit for bit in range(8, 2, -1) if width & (1 << bit))
