"""What becomes of complete sums in the kernels for sm_90: scales, bias, activation; to C by TMA, or from registers.

Here a group is a warpgroup, whose threads hold 64 rows for each wgmma that it makes of a tile along its height. Upright
these are rows of C: each warp brings its 16 by itself. Swapped they are columns of C, 128 bytes of each of its rows,
which are wgmma's columns: stmatrix transposes 8 x 8 sums on their way to shared memory, and the four warps of a group
fill a part together, so that they wait for one another before it is sent, and before another is written over it.
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
# That a thread which multiplies keeps beside sums and what its finish reads early. A margin: with 56 a tile of 64x240
# by one group, with bias and gelu, spilled 26 registers, where it spills 12 if it reads late.
OTHER_REGISTERS = 72
# Named barriers of the groups that fill a part together, one for each; those before are Dense's.
FILLING = 3


class Epilogue(Finish):
    """For a kernel that has `width` columns of a tile, `groups_of_tile` and `high` wgmmas of each along its height,
    along M, or N if `swapped` (`in_order`), and `registers` a thread; `dtype_c`, what the finish does (`scales`,
    `bias`, `activation`) and how C goes out (`box` by `box`, one side of which is `part`, from `buffers`): Dense says
    of each.
    """

    def places(self, first_row, first_column, thread):
        """Of the rows, and of the columns, of wgmma that a thread has sums of: where the first one is along C, and of
        each how much further it is, with a place.

        The place of a sum is that of its row and that of its column, added. A thread has of each 8 columns two
        neighbouring ones, in its row and in the one 8 below: sums[0:2] and sums[2:4].
        """
        row = first_row + thread // WARP * WARP_ROWS + thread % WARP // 4
        column = first_column + thread % 4 * 2
        rows = [
            (high * self.groups_of_tile * ROWS + below * 8, (below * 2, 0, high))
            for high in range(self.high)
            for below in range(2)
        ]
        columns = [(eight * 8 + beside, (beside, eight, 0)) for eight in range(self.width // 8) for beside in range(2)]
        return (row, rows), (column, columns)

    @property
    def reads_early(self):
        """Whether a thread has registers for what its finish reads while it multiplies: memory takes as long as some
        K-blocks, and who asks behind the last one waits for it.
        """
        of_rows, of_columns = 2 * self.high, self.width // 4
        each = int(self.scales == "each")
        of_m, of_n = self.in_order(of_rows, of_columns)
        return of_m * each + of_n * (each + self.bias) + of_rows * of_columns <= self.registers - OTHER_REGISTERS

    def read(self, first_row, first_column, thread, extras, sizes):
        """What a finish needs beside sums: the scale of all; or A's of a thread's rows of C, and B's and the bias of
        its columns, beyond C the last one's.
        """
        if self.scales == "whole":
            whole = self.at(extras[0], 0) * self.at(extras[1], 0)
        else:
            whole = None
        (first_m, along_m), (first_n, along_n) = self.in_order(*self.places(first_row, first_column, thread))
        of_m, of_n, added = [], [], []
        if self.scales == "each":
            of_m = [self.at(extras[0], cutlass.min(first_m + further, sizes[0] - 1)) for further, _ in along_m]
        for further, _ in along_n:
            at = cutlass.min(first_n + further, sizes[1] - 1)
            if self.scales == "each":
                of_n.append(self.at(extras[1], at))
            if self.bias:
                added.append(self.at(extras[len(extras) - 1], at))
        return whole, of_m, of_n, added

    @cute.jit
    def finish(self, sums, values):
        """From complete sums to what C is cast from: scales, bias and activation, in float32; `values` are `read`."""
        whole, of_m, of_n, added = values
        if const_expr(self.scales == "whole"):
            for place in range_constexpr(cute.size(sums)):
                sums[place] *= whole
        self.along_sides(sums, of_m, of_n, added)
        if const_expr(self.activation != "none"):
            for place in range_constexpr(cute.size(sums)):
                sums[place] = self.activate(sums[place])

    def along_sides(self, sums, of_m, of_n, added):
        """What rows and columns of C have of their own, to their sums."""
        (_, along_m), (_, along_n) = self.in_order(*self.places(0, 0, 0))
        if of_m:
            for scale, (_, one) in zip(of_m, along_m, strict=True):
                for _, other in along_n:
                    sums[_added(one, other)] *= scale
        for number, (_, one) in enumerate(along_n):
            for _, other in along_m:
                place = _added(one, other)
                if of_n:
                    sums[place] *= of_n[number]
                if added:
                    sums[place] += added[number].to(Float32)

    @cute.jit
    def store(self, sums, parts, first_row: Int32, first_column: Int32, thread, which, c, sizes):
        """Sums to C through shared memory, by TMA, `part` of wgmma's columns at a time: each warp its 16 rows, or,
        swapped, the group its 64.
        """
        warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
        share = which if self.swapped else which * 4 + warp
        own = cute.local_tile(parts, (*self.box, self.buffers), (share, 0, 0))
        # Four 8x8 matrices at once where the part has 16 columns more, else two; each lane gives the place of a row of
        # one: upright those below it and then those beside it, swapped those beside and then those below.
        step = 16 if self.part % 16 == 0 else 8
        atom = cute.make_copy_atom(StMatrix8x8x16bOp(self.swapped, step // 4), self.dtype_c)
        other = lane // 16 * 8 if step == 16 else 0
        row, column = lane % 16, cute.assume(other, divby=8)
        if const_expr(self.swapped):
            row, column = lane % 8 + other, cute.assume(warp * WARP_ROWS + lane // 8 % 2 * 8, divby=8)
        # The last part begins so that it ends where the tile does: some of C may go out twice, and the same.
        firsts = [min(first, self.width - self.part) for first in range(0, self.width, self.part)]
        for high in range_constexpr(self.high):
            at_row = first_row + high * self.groups_of_tile * ROWS + (0 if self.swapped else warp * WARP_ROWS)
            for number in range_constexpr(len(firsts)):
                buffer = (high * len(firsts) + number) % self.buffers
                # The first of a tile goes where the last of the tile before it came from, if they are an odd number.
                again = high == 0 and number == 0 and self.high * len(firsts) % self.buffers != 0
                # Of copies that this warp sent; a warp that sends none waits for none here.
                cute.arch.cp_async_bulk_wait_group(0 if again else self.buffers - 1, read=True)
                self.gather(which)
                for piece in range_constexpr(self.part // step):
                    values = cute.make_rmem_tensor(cute.make_layout(step // 2), self.dtype_c)
                    for value in range_constexpr(step // 2):
                        eight = (firsts[number] + piece * step) // 8 + value // 4
                        values[value] = sums[value % 4, eight, high].to(self.dtype_c)
                    beside = 0 if self.swapped else piece * step
                    below = piece * step if self.swapped else 0
                    at = cute.domain_offset((row + below, column + beside, buffer), own)
                    cute.copy(atom, values, cute.make_tensor(at.iterator, cute.make_layout(step // 2)))
                cute.arch.fence_view_async_shared()
                self.gather(which)
                corner = self.in_order(at_row, first_column + firsts[number])
                if const_expr(not self.swapped):  # noqa: SIM114  this is known when it is compiled, the other is not
                    self.send(own, buffer, corner, c, sizes)
                elif warp == 0:
                    self.send(own, buffer, corner, c, sizes)

    def of_product(self, product, c, extras, sizes):
        """C and what a finish reads of one product of a batch. C by TMA: its descriptor, of all products, its address,
        and where its rows begin in the descriptor's. Of a part of K where its sums are.
        """
        if self.split:
            return c + Int64(product) * sizes[0] * sizes[4], extras
        if not self.batched:
            return c, extras
        pointers = (*(() if self.tma_store else (c,)), *(extras or ()))
        own, *others = (pointer + Int64(product) * sizes[6 + number] for number, pointer in enumerate(pointers))
        return (c, own, product * sizes[0]) if self.tma_store else own, tuple(others)

    @cute.jit
    def gather(self, which):
        """The warps that fill a part: one, or all of group `which`."""
        if const_expr(self.swapped):
            cute.arch.barrier(barrier_id=FILLING + which, number_of_threads=4 * WARP)
        else:
            cute.arch.sync_warp()

    @cute.jit
    def send(self, own, buffer, corner, c, sizes):
        """A part that is complete in shared memory to C, from `corner` on, by one thread of this warp.

        Of a batch one that overhangs M goes by all threads of the warp, row by row: what follows is the next product's.
        """
        if const_expr(self.batched):
            descriptor, pointer, first = c
            if corner[0] + self.box[0] <= sizes[0]:
                self.send_part(own, buffer, (corner[0] + first, corner[1]), descriptor, sizes)
            else:
                self.send_rows(own, buffer, corner, pointer, sizes)
        else:
            self.send_part(own, buffer, corner, c, sizes)
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def send_part(self, own, buffer, corner, c, sizes):
        """A whole part, by TMA."""
        matrix = cute.domain_offset(corner, coordinates(sizes[0], sizes[1], True))
        place = cute.local_tile(matrix, self.box, (0, 0))
        source, to = cpasync.tma_partition(
            c, 0, cute.make_layout(1), cute.group_modes(own, 0, 2), cute.group_modes(place, 0, 2)
        )
        cute.copy(c, source[None, buffer], to[None])

    @cute.jit
    def send_rows(self, own, buffer, corner, c, sizes):
        """What of a part lies in C, 16 bytes a thread; rows of C are a multiple of that."""
        lane, pitch = cute.arch.lane_idx(), sizes[4]
        rows, eights = self.box[0], self.box[1] // 8
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype_c, num_bits_per_copy=128)
        for piece in cutlass.range(-(-rows * eights // WARP), unroll=1):
            place = piece * WARP + lane
            row, column = place // eights, cute.assume(place % eights * 8, divby=8)
            at_row, at_column = corner[0] + row, corner[1] + column
            if row < rows and at_row < sizes[0] and at_column < sizes[1]:
                source = cute.domain_offset((row, column, buffer), own)
                target = (c + (Int64(at_row) * pitch + at_column)).align(16)
                values = cute.make_rmem_tensor(cute.make_layout(8), self.dtype_c)
                cute.copy(atom, cute.make_tensor(source.iterator, cute.make_layout(8)), values)
                cute.copy(atom, values, cute.make_tensor(target, cute.make_layout(8)))

    @cute.jit
    def write(self, sums, first_row: Int32, first_column: Int32, thread, c, sizes):
        """Sums to C from registers, for rows of C off 16 bytes, and types of 32 bits: one at a time, or in `pairs`."""
        m, n, pitch = sizes[0], sizes[1], sizes[4]
        (first_m, along_m), (first_n, along_n) = self.in_order(*self.places(first_row, first_column, thread))
        for number_m in range_constexpr(len(along_m)):
            below, of_m = along_m[number_m]
            if const_expr(self.pairs):
                if first_m + below < m:
                    self.write_pairs(sums, of_m, first_n, along_n, c + Int64(first_m + below) * pitch, n)
                continue
            line = cute.make_tensor(c + Int64(first_m + below) * pitch, cute.make_layout(n))
            for number_n in range_constexpr(len(along_n)):
                beside, of_n = along_n[number_n]
                if first_m + below < m and first_n + beside < n:
                    line[first_n + beside] = sums[_added(of_m, of_n)].to(self.dtype_c)

    @cute.jit
    def write_pairs(self, sums, of_m, first_n: Int32, along_n, row, n: Int32):
        """A thread's sums of one row of C, two neighbours at a time: N is even."""
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype_c, num_bits_per_copy=2 * self.dtype_c.width)
        for number in range_constexpr(0, len(along_n), 2):
            further = along_n[number][0]
            if first_n + further < n:
                values = cute.make_rmem_tensor(cute.make_layout(2), self.dtype_c)
                for beside in range_constexpr(2):
                    values[beside] = sums[_added(of_m, along_n[number + beside][1])].to(self.dtype_c)
                to = (row + first_n + further).align(2 * self.dtype_c.width // 8)
                cute.copy(atom, values, cute.make_tensor(to, cute.make_layout(2)))


def _added(one, other):
    return tuple(a + b for a, b in zip(one, other, strict=True))
