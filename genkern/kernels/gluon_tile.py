"""What the tiles of the kernels in Gluon are made of, beside their sides (family.py): parts that copies take to C."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.kernels.family import powers_of


@dataclass(frozen=True)
class Part:
    """Columns of a tile that one copy takes to C, from `offset` on; `owner` is a program of the cluster."""

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
