"""Variant: one kernel text of a module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """One kernel text of a module: its name, its template, which dimensions need masks, and what is written out.

    That is `rows` of skinny; in CuTe DSL how many columns of C go out at a time, `part`; and in Gluon how many copies
    bring the columns of a tile, `column_boxes`, and how many take parts of it to C, `c_parts`, each by a descriptor of
    its own. The `cluster` programs of a cluster make one tile, or have tiles of their own: `down` of them along the
    rows that wgmma goes along, `across` along the columns; in CuTe DSL along M and along N. Of these `ctas` share one
    (tcgen05.mma's cta_group). `copies`: the operands that a kernel of realigned copies, by letters. `held`: steps of A
    that skinny_dot has in shared memory at a time (0: none), and `in_parts` that those are not all.
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
    down: int = 1
    across: int = 1
    column_boxes: int = 0
    c_parts: int = 0
    specialized: bool = False
    part: int = 0
    ctas: int = 1
    copies: str = ""
    held: int = 0
    in_parts: bool = False

    @property
    def in_module(self) -> bool:
        """Whether its text is made by a template of the generated module, and in no file of its own."""
        return self.template.endswith(".j2")

    @property
    def side_by_side(self) -> bool:
        """Whether the programs of a cluster have tiles of their own."""
        return self.down * self.across > 1

    @property
    def boxes(self) -> tuple[str, ...]:
        """Its descriptors of operands (families in Gluon)."""
        return ("rows_desc", *(f"columns_desc_{number}" for number in range(self.column_boxes)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Its descriptors of C (families in Gluon)."""
        return tuple(f"c_desc_{number}" for number in range(self.c_parts))
