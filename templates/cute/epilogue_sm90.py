"""What becomes of complete sums in the kernels for sm_90: scales, bias, activation; to C by TMA, or from registers.

Here a group is a warpgroup, whose threads hold 64 rows of C for each wgmma that it makes of a tile along M.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync
from cutlass.cute.nvgpu.warp import StMatrix8x8x16bOp

from genkern.templates.cute.finish import Finish, coordinates

WARP = 32
# Rows of one wgmma, and of what one warp holds of them.
ROWS, WARP_ROWS = 64, 16


class Epilogue(Finish):
    """For a kernel that has `block_n` columns of a tile, `groups_of_tile` and `high` wgmmas of each along M, `dtype_c`,
    what the finish does (`scales`, `bias`, `activation`) and how C goes out (`part`, `buffers`): Dense says of each.
    """

    # A thread has of each 8 columns two neighbouring ones, in its row and in the one 8 below: sums[0:2], and sums[2:4].
    @cute.jit
    def finish(self, sums, first_row: Int32, first_column: Int32, thread, extras, sizes):
        """From complete sums to what C is cast from: scales, bias and activation, in float32."""
        row = first_row + thread // WARP * WARP_ROWS + thread % WARP // 4
        column = first_column + thread % 4 * 2
        last_row, last_column = sizes[0] - 1, sizes[1] - 1
        if const_expr(self.scales == "whole"):
            scale = self.at(extras[0], 0) * self.at(extras[1], 0)
            for place in range_constexpr(cute.size(sums)):
                sums[place] *= scale
        if const_expr(self.scales == "each"):
            for high in range_constexpr(self.high):
                for below in range_constexpr(2):
                    at = row + high * self.groups_of_tile * ROWS + below * 8
                    scale = self.at(extras[0], cutlass.min(at, last_row))
                    for eight in range_constexpr(self.block_n // 8):
                        for beside in range_constexpr(2):
                            sums[below * 2 + beside, eight, high] *= scale
        if const_expr(self.scales == "each" or self.bias):
            for eight in range_constexpr(self.block_n // 8):
                for beside in range_constexpr(2):
                    at = cutlass.min(column + eight * 8 + beside, last_column)
                    if const_expr(self.scales == "each"):
                        scale = self.at(extras[1], at)
                        for high in range_constexpr(self.high):
                            for below in range_constexpr(2):
                                sums[below * 2 + beside, eight, high] *= scale
                    if const_expr(self.bias):
                        more = self.at(extras[len(extras) - 1], at).to(Float32)
                        for high in range_constexpr(self.high):
                            for below in range_constexpr(2):
                                sums[below * 2 + beside, eight, high] += more
        if const_expr(self.activation != "none"):
            for place in range_constexpr(cute.size(sums)):
                sums[place] = self.activate(sums[place])

    @cute.jit
    def store(self, sums, parts, first_row: Int32, first_column: Int32, thread, which, c, sizes):
        """Sums to C through shared memory, by TMA: each warp its 16 rows, `part` columns at a time."""
        warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
        own = cute.local_tile(parts, (WARP_ROWS, self.part, self.buffers), (which * 4 + warp, 0, 0))
        matrix = coordinates(sizes[0], sizes[1], True)
        # Four 8x8 matrices at once where the part has 16 columns more, else two; each lane gives the place of a row.
        width = 16 if self.part % 16 == 0 else 8
        atom = cute.make_copy_atom(StMatrix8x8x16bOp(False, width // 4), self.dtype_c)
        row, column = lane % 16, cute.assume(lane // 16 * 8, divby=8) if width == 16 else 0
        # The last part begins so that it ends where the tile does: some columns may go out twice, and the same.
        firsts = [min(first, self.block_n - self.part) for first in range(0, self.block_n, self.part)]
        for high in range_constexpr(self.high):
            at_row = first_row + high * self.groups_of_tile * ROWS + warp * WARP_ROWS
            for number in range_constexpr(len(firsts)):
                buffer = (high * len(firsts) + number) % self.buffers
                # The first of a tile goes where the last of the tile before it came from, if they are an odd number.
                again = high == 0 and number == 0 and self.high * len(firsts) % self.buffers != 0
                cute.arch.cp_async_bulk_wait_group(0 if again else self.buffers - 1, read=True)
                cute.arch.sync_warp()
                for piece in range_constexpr(self.part // width):
                    values = cute.make_rmem_tensor(cute.make_layout(width // 2), self.dtype_c)
                    for value in range_constexpr(width // 2):
                        eight = (firsts[number] + piece * width) // 8 + value // 4
                        values[value] = sums[value % 4, eight, high].to(self.dtype_c)
                    at = cute.domain_offset((row, piece * width + column, buffer), own)
                    cute.copy(atom, values, cute.make_tensor(at.iterator, cute.make_layout(width // 2)))
                cute.arch.fence_view_async_shared()
                cute.arch.sync_warp()
                corner = cute.domain_offset((at_row, first_column + firsts[number]), matrix)
                place = cute.local_tile(corner, (WARP_ROWS, self.part), (0, 0))
                source, to = cpasync.tma_partition(
                    c, 0, cute.make_layout(1), cute.group_modes(own, 0, 2), cute.group_modes(place, 0, 2)
                )
                cute.copy(c, source[None, buffer], to[None])
                cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def write(self, sums, first_row: Int32, first_column: Int32, thread, c, sizes):
        """Sums to C from registers, element by element: for rows of C off 16 bytes, and types of 32 bits."""
        m, n, pitch = sizes[0], sizes[1], sizes[4]
        row = first_row + thread // WARP * WARP_ROWS + thread % WARP // 4
        column = first_column + thread % 4 * 2
        for high in range_constexpr(self.high):
            for below in range_constexpr(2):
                at = row + high * self.groups_of_tile * ROWS + below * 8
                line = cute.make_tensor(c + Int64(at) * pitch, cute.make_layout(n))
                for eight in range_constexpr(self.block_n // 8):
                    for beside in range_constexpr(2):
                        if at < m and column + eight * 8 + beside < n:
                            value = sums[below * 2 + beside, eight, high]
                            line[column + eight * 8 + beside] = value.to(self.dtype_c)
