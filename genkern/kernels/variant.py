"""One kernel text of a module: what its template must know."""

from __future__ import annotations

from dataclasses import dataclass

from genkern.kernels.family import buffer_bytes, landing_bytes, powers_of


@dataclass(frozen=True)
class Part:
    """Columns of a Gluon tile that one copy takes to C: `offset` and `width`; `owner` is the program of the cluster."""

    number: int
    owner: int
    offset: int
    width: int


@dataclass(frozen=True)
class Variant:
    """One kernel text of a module: its name, its template, which dimensions need masks, and what is written out.

    That is `rows` of skinny; and in Gluon the sides of the tile, `rows` being the one that the 64 rows of wgmma go
    along, and the multiplying warps.
    """

    name: str
    template: str
    mask_m: bool = False
    mask_n: bool = False
    mask_k: bool = False
    split: bool = False
    xcd: bool = False
    cache_modifier: str = "none"
    rows: int = 0
    swapped: bool = False
    width: int = 0
    warps: int = 0
    cluster: int = 1
    specialized: bool = False

    @property
    def buffer_bytes(self) -> int:
        """Of one buffer of its ring (families in Gluon)."""
        return buffer_bytes(self.rows, self.width)

    @property
    def column_copies(self) -> tuple[int, ...]:
        """Columns that each copy to a buffer brings (families in Gluon)."""
        return powers_of(self.width)

    @property
    def boxes(self) -> tuple[str, ...]:
        """Its descriptors of operands, by side and size (families in Gluon)."""
        return (f"rows_{self.rows}", *(f"columns_{count}" for count in self.column_copies))

    @property
    def landing_bytes(self) -> int:
        """Where a program of a cluster finds the sums of the others (families in Gluon)."""
        return landing_bytes(self.rows, self.width, self.cluster)

    @property
    def owned(self) -> tuple[range, ...]:
        """For each program of a cluster, the columns that it stores, by eights (families in Gluon)."""
        eights = self.width // 8
        return tuple(range(i * eights // self.cluster, (i + 1) * eights // self.cluster) for i in range(self.cluster))

    @property
    def parts(self) -> tuple[Part, ...]:
        """What each copy to C takes: of each program's columns the powers of two that they add up to, largest first."""
        parts: list[Part] = []
        for owner, columns in enumerate(self.owned):
            offset = 8 * columns.start
            for width in powers_of(8 * len(columns)):
                parts.append(Part(len(parts), owner, offset, width))
                offset += width
        return tuple(parts)
