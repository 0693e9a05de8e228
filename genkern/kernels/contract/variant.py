"""`Variant`: one kernel text of a module."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """One kernel text of a module: its name, its template and the values that the template depends on.

    name: the kernel's name.
    template: the Jinja template (`*.j2`), or the Python file of a kernel in CuTe DSL.
    mask_m, mask_n, mask_k: True if the tiles do not divide this dimension, so that the kernel masks it.
    split: True for the text that splits K.
    xcd: True if programs are renumbered by XCD (xcd_remap).
    cache_modifier: cache modifier of the loads, or "none".
    rows: rows of A that the text of skinny is written out for, or that skinny_dot holds in shared memory; else 0.
    swapped: True if the kernel computes the transpose of C.
    cluster: programs in a cluster. They compute one tile together, or have tiles of their own.
    down, across: programs of a cluster with tiles of their own: along the rows and the columns of wgmma, or along M and
        N in CuTe DSL.
    column_boxes: number of descriptors that load the columns of a tile (Gluon).
    c_parts: number of descriptors that store parts of a tile of C (Gluon).
    specialized: True for the warp-specialised text of persistent_tma, and for the ping_pong schedule of cute_wgmma.
    part: columns of C, or rows of a swapped tile, that TMA stores at a time; 0 for direct stores (CuTe DSL).
    ctas: programs of a cluster that compute one tile together (cta_group of tcgen05.mma).
    copies: letters of the operands that the copying kernel of a realigned form copies.
    held: K-blocks of A that skinny_dot holds in shared memory at a time; 0 if it holds none.
    in_parts: True if a program may have more K-blocks than `held`.
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
        """Whether the text is rendered into the generated module. If not, it is a file of its own."""
        return self.template.endswith(".j2")

    @property
    def side_by_side(self) -> bool:
        """Whether the programs of a cluster have tiles of their own."""
        return self.down * self.across > 1

    @property
    def boxes(self) -> tuple[str, ...]:
        """Names of the parameters that are descriptors of operands (Gluon)."""
        return ("rows_desc", *(f"columns_desc_{number}" for number in range(self.column_boxes)))

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parameters that are descriptors of C (Gluon)."""
        return tuple(f"c_desc_{number}" for number in range(self.c_parts))
