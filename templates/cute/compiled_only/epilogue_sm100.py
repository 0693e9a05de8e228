"""What becomes of complete sums in the kernel for sm_100: from tensor memory, by scales, bias and activation, to C.

A thread has one row of C, and of each part of the columns a run of neighbours. Which row and which columns it has, the
copy from tensor memory says itself (`partition_D`); a test holds that against this table, for thread t of warp w:

| rows of a tile | where tensor memory has them | row of C | columns of a part |
|---|---|---|---|
| 128 | row r in lane r | 32 w + t | all |
| 64 | row r in lane 32 (r / 16) + r % 16 | 16 w + t % 16 | half t / 16 |
| 64, of 128 that two CTAs share | right half of the columns in lanes 64 to 127 | 32 (w % 2) + t | all, of half w / 2 |

A warp reads lanes 32 (w % 4) to 32 (w % 4) + 31 and no others (PTX ISA, tcgen05.ld), so that these are warps 0 to 3 of
a CTA. What a warp has of a part is a rectangle of C, which it alone writes to shared memory and gives to the copy
engine: no warp waits for another.

Never run: nothing of genkern has run on sm_100.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync, tcgen05

from genkern.templates.cute.finish import Finish, coordinates

WARP = 32
# What one store takes, in bits.
VECTOR = 128


class Epilogue(Finish):
    """For a kernel that has `rows` and `block_n` columns of a tile, in `halves` (2 where these lie in other lanes of
    tensor memory), `warp_rows` of a part for a warp, `dtype_c`, what the finish does
    (`scales`, `bias`, `activation`) and how C goes out (`tma_store`, `part`, `buffers`): Dense says of each.
    """

    @property
    def run(self):
        """Columns of a part that a thread has."""
        return self.part * self.warp_rows // WARP

    def in_parts(self, tile):
        """A tile as parts, [rows, columns, 1, number, ..]: a part has `part` columns of each half."""
        columns = cute.make_layout(self.part)
        if self.halves == 2:
            columns = cute.make_layout((self.part, 2), stride=(1, self.block_n // 2))
        return cute.flat_divide(tile, (cute.make_layout(self.rows), columns))

    def share_of(self, thread, sums):
        """What copies a part to registers, a thread's share of all parts of `sums`, and the places of that in a tile.

        Shares are [values, 1, 1, 1, number, ..]: of `sums` (all accumulators) addresses, of the tile (row, column).
        """
        parts = self.in_parts(sums[(None, None), 0, 0, None])
        kind = tcgen05.Ld32x32bOp if self.warp_rows == WARP else tcgen05.Ld16x32bx2Op
        atom = cute.make_copy_atom(kind(tcgen05.Repetition(self.run)), Float32)
        copy = tcgen05.make_tmem_copy(atom, parts[None, None, 0, 0, 0])
        own = copy.get_slice(thread)
        places = own.partition_D(self.in_parts(cute.make_identity_tensor((self.rows, self.block_n))))
        return copy, own.partition_S(parts), places

    # The parts of a tile are so many texts, one below the other: 2 to 8.
    @cute.jit
    def bring(self, thread, sums, which, read, parts, first_row: Int32, first_column: Int32, c, extras, sizes):
        """One tile, accumulator number `which`, to C; `read` is arrived at once its sums are in registers.

        The last load of a warp is complete (tcgen05.wait::ld, of all its threads) before one of them arrives, and the
        fence orders it before whatever follows the barrier: the next product may then overwrite these sums, while this
        warp still stores the last part.
        """
        copy, shares, places = self.share_of(thread, sums)
        count = cute.size(places, mode=[4])
        for number in range_constexpr(count):
            values = cute.make_rmem_tensor(cute.make_layout(self.run), Float32)
            into = cute.make_tensor(values.iterator, places[None, None, None, 0, number].shape)
            cute.copy(copy, shares[None, None, None, 0, number, which], into)
            cute.arch.fence_view_async_tmem_load()
            if const_expr(number == count - 1):
                self.let_go(read)
            row, column = places[None, None, None, 0, number][0]
            self.finish(values, first_row + row, first_column + column, extras, sizes)
            if const_expr(self.tma_store):
                corner = first_column + number * self.part
                # The first of a tile goes where the last of the tile before it came from, if they are an odd number.
                again = number == 0 and count % self.buffers != 0
                self.store(values, parts, first_row, corner, thread, number % self.buffers, again, c, sizes)
            else:
                self.write(values, first_row + row, first_column + column, c, sizes)

    @cute.jit
    def finish(self, values, row: Int32, column: Int32, extras, sizes):
        """From complete sums of one row, from `column` on, to what C is cast from, in float32."""
        last_row, last_column = sizes[0] - 1, sizes[1] - 1
        scale = Float32(1.0)
        if const_expr(self.scales == "whole"):
            scale = self.at(extras[0], 0) * self.at(extras[1], 0)
        if const_expr(self.scales == "each"):
            scale = self.at(extras[0], cutlass.min(row, last_row))
        for place in range_constexpr(self.run):
            value = values[place]
            at = cutlass.min(column + place, last_column)
            if const_expr(self.scales != "none"):
                value *= scale
            if const_expr(self.scales == "each"):
                value *= self.at(extras[1], at)
            if const_expr(self.bias):
                value += self.at(extras[len(extras) - 1], at).to(Float32)
            values[place] = self.activate(value)

    @cute.jit
    def store(self, values, parts, first_row: Int32, first_column: Int32, thread, buffer, again, c, sizes):
        """A part to C through shared memory, by TMA: each warp its rectangle, from a buffer of its own.

        `again`: the part before this one came from the same buffer.
        """
        warp, lane = cute.arch.make_warp_uniform(thread // WARP), thread % WARP
        own = cute.local_tile(parts, (self.warp_rows, self.part, self.buffers), (warp, 0, 0))
        row, column = lane, 0
        if const_expr(self.warp_rows < WARP):
            row, column = lane % self.warp_rows, cute.assume(lane // self.warp_rows * self.run, divby=self.run)
        # Of this warp's copies all but those of its other buffers have read what they store.
        cute.arch.cp_async_bulk_wait_group(0 if again else self.buffers - 1, read=True)
        cute.arch.sync_warp()
        atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype_c, num_bits_per_copy=VECTOR)
        wide = VECTOR // self.dtype_c.width
        for piece in range_constexpr(self.run // wide):
            cast = cute.make_rmem_tensor(cute.make_layout(wide), self.dtype_c)
            for place in range_constexpr(wide):
                cast[place] = values[piece * wide + place].to(self.dtype_c)
            at = cute.domain_offset((row, column + piece * wide, buffer), own)
            cute.copy(atom, cast, cute.make_tensor(at.iterator, cute.make_layout(wide)))
        cute.arch.fence_view_async_shared()
        cute.arch.sync_warp()
        # The first row and column of a warp's rectangle.
        below = warp * self.warp_rows if self.halves == 1 else warp % 2 * self.warp_rows
        beside = 0 if self.halves == 1 else warp // 2 * (self.block_n // 2)
        corner = cute.domain_offset((first_row + below, first_column + beside), coordinates(sizes[0], sizes[1], True))
        source, to = cpasync.tma_partition(
            *(c, 0, cute.make_layout(1), cute.group_modes(own, 0, 2)),
            cute.group_modes(cute.local_tile(corner, (self.warp_rows, self.part), (0, 0)), 0, 2),
        )
        cute.copy(c, source[None, buffer], to[None])
        cute.arch.cp_async_bulk_commit_group()

    @cute.jit
    def write(self, values, row: Int32, column: Int32, c, sizes):
        """A part to C from registers: 16 bytes at a time where rows of C begin at multiples of that and the run ends
        within the row, else element by element.
        """
        m, n, pitch = sizes[0], sizes[1], sizes[4]
        wide = VECTOR // self.dtype_c.width
        if row < m:
            if pitch % wide == 0 and column + self.run <= n:
                # Tiles, parts and runs begin at multiples of 8 columns at least.
                start = Int64(row) * (cute.assume(pitch // wide * wide, divby=wide)) + cute.assume(column, divby=wide)
                line = cute.make_tensor(c + cute.assume(start, divby=wide), cute.make_layout(self.run))
                atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), self.dtype_c, num_bits_per_copy=VECTOR)
                cast = cute.make_rmem_tensor(cute.make_layout(self.run), self.dtype_c)
                for place in range_constexpr(self.run):
                    cast[place] = values[place].to(self.dtype_c)
                cute.copy(
                    atom,
                    cute.logical_divide(cast, cute.make_layout(wide)),
                    cute.logical_divide(line, cute.make_layout(wide)),
                )
            else:
                line = cute.make_tensor(c + Int64(row) * pitch, cute.make_layout(n))
                for place in range_constexpr(self.run):
                    if column + place < n:
                        line[column + place] = values[place].to(self.dtype_c)
