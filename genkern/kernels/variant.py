"""One kernel text of a module: what its template must know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """One kernel text of a module: its name, its template, which dimensions need masks, and what is written out.

    That is `rows` of skinny; and in Gluon how many copies bring the columns of a tile, `column_boxes`, and how many
    take parts of it to C, `c_parts`, each by a descriptor of its own.
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
    cluster: int = 1
    column_boxes: int = 0
    c_parts: int = 0
    specialized: bool = False

    @property
    def boxes(self) -> tuple[str, ...]:
        """Its descriptors of operands (families in Gluon)."""
        return ("rows_desc", *(f"columns_desc_{number}" for number in range(self.column_boxes)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Its descriptors of C (families in Gluon)."""
        return tuple(f"c_desc_{number}" for number in range(self.c_parts))
