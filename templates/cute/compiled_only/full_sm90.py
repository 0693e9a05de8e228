"""fp8 with full sums for sm_90 in CuTe DSL: promoted_sm90's kernel without scales inside the sum.

C [M, N] = finish(sum over K-blocks of 128: A @ B of the block), which is added up in float32. `build` is the entry.
"""

from __future__ import annotations

from cutlass import Int32, cute, range_constexpr

from genkern.templates.cute.arguments import arguments_of
from genkern.templates.cute.promoted_sm90 import Promoted, hold


def build(symbol, constants):
    """As dense_sm90's."""
    kernel = Full(symbol, **constants)
    return kernel, arguments_of(kernel)


class Full(Promoted):
    """The kernel for one choice of constants: scales, if there are any, are the finish's."""

    @cute.jit
    def promote(self, sums, made, high, factors):
        """Complete products to the sums."""
        hold(made)
        for eight in range_constexpr(self.block_n // 8):
            for value in range_constexpr(4):
                sums[value, eight, high] += made[eight * 4 + value]

    def factors(self, scales, slot, high, where):
        """None inside the sum."""
        return ()

    def ask(self, scales, slot, block: Int32, where):
        """None inside the sum."""

    def begin_scales(self, scales, tile, thread, which, extras, sizes, blocks):
        """None inside the sum."""
