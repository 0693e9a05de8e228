"""Block-scaled fp8 for sm_90 in CuTe DSL: dense_sm90's cooperative kernel, with products promoted for each K-block.

C [M, N] = finish(sum over K-blocks of 128: (A @ B of the block) * scale_a [M, block] * scale_b [N // 128, block]). A
has a float32 scale for each row and K-block, rows beside each other in memory, B one for each 128 columns and K-block,
K-blocks beside each other. `build` is the entry.

A stage is one K-block. Of a group's rows, 64 at a time are multiplied into registers of their own, and added to the
sums when they are complete. Where registers suffice there are two such sets, and the next 64 rows, or the next
K-block's, are multiplied meanwhile; else the other group keeps the tensor cores busy.
"""

from __future__ import annotations

import math

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import warpgroup

from genkern.templates.cute.arguments import arguments_of
from genkern.templates.cute.dense_sm90 import GROUP, Dense
from genkern.templates.cute.epilogue_sm90 import ROWS, WARP, WARP_ROWS

# Columns of B, and elements along K, that have a scale in common.
BLOCK = 128
# K-blocks whose scales are asked for before they are needed, this one's among them: memory takes about as long.
AHEAD = 2
# Registers of sums and products together that leave enough for scales and addresses.
MOST_OF_TWO = 192


def build(symbol, constants):
    """As dense_sm90's."""
    kernel = Promoted(symbol, **constants)
    return kernel, arguments_of(kernel)


class Promoted(Dense):
    """The kernel for one choice of constants, which has a group's rows 64 at a time."""

    def __init__(self, symbol, **constants):
        super().__init__(symbol, **constants)
        # Columns of a tile that lie in one block of B's wherever the tile begins, and blocks that it may lie in.
        self.segment = math.gcd(self.block_n, BLOCK)
        self.blocks_n = -(-(BLOCK - self.segment + self.block_n) // BLOCK)
        self.sets = 2 if (self.high + 2) * self.block_n // 2 <= MOST_OF_TWO else 1

    @cute.jit
    def multiply(self, thread, which, a, b, parts, full, empty, c, extras, sizes, blocks: Int32, walk):
        """A multiplying warpgroup, number `which`: its rows of each tile of C."""
        first, turns, step, _, _, _, rank_m, rank_n = walk
        own = self.tiled_mma().get_slice(thread)
        rows = self.tiled_mma().make_fragment_A(own.partition_A(a))
        columns = self.tiled_mma().make_fragment_B(own.partition_B(b))
        sums = cute.make_rmem_tensor(cute.make_layout((4, self.block_n // 8, self.high)), Float32)
        shape = self.tiled_mma().partition_shape_C((ROWS * self.groups, self.block_n))
        made = tuple(cute.make_rmem_tensor(shape, Float32) for _ in range(self.sets))
        # Scales of a thread's two rows of each wgmma, and of blocks of columns, for this K-block and the next.
        scales = (
            cute.make_rmem_tensor(cute.make_layout((2, self.high, AHEAD)), Float32),
            cute.make_rmem_tensor(cute.make_layout((self.blocks_n, AHEAD)), Float32),
        )
        ring = (full, empty, rank_m, rank_n)
        stage, phase = Int32(0), Int32(0)
        tile = self.tile_at(first, walk)
        self.begin_scales(scales, tile, thread, which, extras, sizes, blocks)
        for turn in cutlass.range(first, turns, step, unroll=1):
            tile = self.tile_at(turn, walk)
            where = (tile, thread, which, extras, sizes, blocks)
            for place in range_constexpr(cute.size(sums)):
                sums[place] = Float32(0.0)
            # Two K-blocks at a time, as registers of products and scales take turns.
            if const_expr(self.sets == 1):
                for pair in cutlass.range(blocks // 2, unroll=1):
                    for slot in range_constexpr(2):
                        cute.arch.mbarrier_wait(full + stage, phase)
                        self.finish_block(sums, made, rows, columns, scales, slot, pair * 2 + slot, stage, ring, where)
                        stage, phase = self.next_stage(stage, phase)
                if blocks % 2 != 0:
                    cute.arch.mbarrier_wait(full + stage, phase)
                    self.finish_block(sums, made, rows, columns, scales, 0, blocks - 1, stage, ring, where)
                    stage, phase = self.next_stage(stage, phase)
            else:
                cute.arch.mbarrier_wait(full + stage, phase)
                self.begin(made[0], rows, columns, 0, stage)
                for pair in cutlass.range((blocks - 1) // 2, unroll=1):
                    for slot in range_constexpr(2):
                        stage, phase = self.pass_block(
                            sums, made, rows, columns, scales, slot, pair * 2 + slot, stage, phase, ring, where
                        )
                if blocks % 2 == 0:
                    stage, phase = self.pass_block(
                        sums, made, rows, columns, scales, 0, blocks - 2, stage, phase, ring, where
                    )
                    self.finish_block(sums, made, rows, columns, scales, 1, blocks - 1, stage, ring, where)
                else:
                    self.finish_block(sums, made, rows, columns, scales, 0, blocks - 1, stage, ring, where)
                stage, phase = self.next_stage(stage, phase)
            # The next tile's scales are on their way while this one goes out.
            following = self.tile_at(cutlass.min(turn + step, turns - 1), walk)
            self.begin_scales(scales, following, thread, which, extras, sizes, blocks)
            row, column = tile[0] * self.block_m + which * ROWS, tile[1] * self.block_n
            # What follows of a thread's number is worked out here, and no register has it all along K.
            here = anew(thread) % GROUP
            self.finish(sums, self.read(row, column, here, extras, sizes))
            if const_expr(self.tma_store):
                self.store(sums, parts, row, column, here, which, c, sizes)
            else:
                self.write(sums, row, column, here, c, sizes)
        if const_expr(self.tma_store):
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def next_stage(self, stage: Int32, phase: Int32):
        stage += 1
        if stage == self.stages:
            stage = Int32(0)
            phase ^= 1
        return stage, phase

    @cute.jit
    def pass_block(self, sums, made, rows, columns, scales, slot, block, stage, phase, ring, where):
        """All of a K-block that is being multiplied to the sums, when the one after it is: its stage and phase."""
        full, empty, rank_m, rank_n = ring
        following, of = self.next_stage(stage, phase)
        for high in range_constexpr(self.high):
            number = slot * self.high + high
            if const_expr(high + 1 == self.high):
                cute.arch.mbarrier_wait(full + following, of)
                self.begin(made[(number + 1) % 2], rows, columns, 0, following)
            else:
                self.begin(made[(number + 1) % 2], rows, columns, high + 1, stage)
            factors = self.factors(scales, slot, high, where)
            if const_expr(high + 1 == self.high):
                self.ask(scales, slot, block + AHEAD, where)
            warpgroup.wait_group(1)
            if const_expr(high + 1 == self.high):
                self.release(empty + stage, where[1] % GROUP, rank_m, rank_n)
            self.promote(sums, made[number % 2], high, factors)
        return following, of

    @cute.jit
    def finish_block(self, sums, made, rows, columns, scales, slot, block, stage, ring, where):
        """All of a K-block to the sums, with nothing of the next one begun; with two sets its first 64 rows are."""
        _, empty, rank_m, rank_n = ring
        for high in range_constexpr(self.high):
            number = slot * self.high + high
            if const_expr(self.sets == 1):
                self.begin(made[0], rows, columns, high, stage)
            elif const_expr(high + 1 < self.high):
                self.begin(made[(number + 1) % 2], rows, columns, high + 1, stage)
            factors = self.factors(scales, slot, high, where)
            if const_expr(high + 1 == self.high):
                self.ask(scales, slot, block + AHEAD, where)
            warpgroup.wait_group(1 if self.sets == 2 and high + 1 < self.high else 0)
            if const_expr(high + 1 == self.high):
                self.release(empty + stage, where[1] % GROUP, rank_m, rank_n)
            self.promote(sums, made[number % self.sets], high, factors)

    @cute.jit
    def begin(self, made, rows, columns, high, stage):
        """Begin to multiply 64 rows of each group with a stage's columns."""
        mma = self.tiled_mma()
        mma.set(warpgroup.Field.ACCUMULATE, False)
        warpgroup.fence()
        for step_k in range_constexpr(cute.size(rows, mode=[2])):
            one = rows[None, high, step_k, stage]
            of_a = cute.make_tensor(one.iterator, cute.append_ones(one.layout, up_to_rank=2))
            cute.gemm(mma, made, of_a, columns[None, None, step_k, stage], made)
            mma.set(warpgroup.Field.ACCUMULATE, True)
        warpgroup.commit_group()

    @cute.jit
    def promote(self, sums, made, high, factors):
        """Complete products, times what `factors` gives for each of a thread's rows and segment of columns."""
        hold(made)
        for eight in range_constexpr(self.block_n // 8):
            for value in range_constexpr(4):
                factor = factors[value // 2][eight * 8 // self.segment]
                sums[value, eight, high] += made[eight * 4 + value] * factor

    @cute.jit
    def factors(self, scales, slot, high, where):
        """Of a thread's two rows of 64: scales of A times those of B, of each segment of the tile's columns."""
        (_, tile_n), *_ = where
        of_rows, of_columns = scales
        into_block = tile_n * self.block_n % BLOCK
        of_segments = []
        for first in range_constexpr(0, self.block_n, self.segment):
            # The block of B's that a segment lies in is one of two, or the same wherever the tile begins.
            least, most = first // BLOCK, (first + BLOCK - self.segment) // BLOCK
            scale = of_columns[least, slot]
            if const_expr(most > least):
                scale = of_columns[most, slot] if into_block + first >= most * BLOCK else scale
            of_segments.append(scale)
        return tuple(tuple(of_rows[below, high, slot] * scale for scale in of_segments) for below in range(2))

    @cute.jit
    def ask(self, scales, slot, block: Int32, where):
        """Scales of a K-block, or of the last where it is beyond; rows and columns are clamped likewise."""
        (tile_m, tile_n), thread, which, extras, sizes, blocks = where
        of_rows, of_columns = scales
        m, n = sizes[0], sizes[1]
        block = cutlass.min(block, blocks - 1)
        row = tile_m * self.block_m + which * ROWS + thread % GROUP // WARP * WARP_ROWS + thread % WARP // 4
        scales_a = extras[0] + Int64(block) * m
        for high in range_constexpr(self.high):
            for below in range_constexpr(2):
                at = row + high * self.groups * ROWS + below * 8
                of_rows[below, high, slot] = self.at(scales_a, cutlass.min(at, m - 1))
        first = tile_n * self.block_n // BLOCK
        for number in range_constexpr(self.blocks_n):
            column = cutlass.min(first + number, (n - 1) // BLOCK)
            of_columns[number, slot] = self.at(extras[1], Int64(column) * blocks + block)

    @cute.jit
    def begin_scales(self, scales, tile, thread, which, extras, sizes, blocks):
        """Scales of a tile's first K-blocks."""
        for slot in range_constexpr(AHEAD):
            self.ask(scales, slot, Int32(slot), (tile, thread, which, extras, sizes, blocks))


def hold(made):
    """Products stay in their registers, as they are here: what reads them is not moved before the wait for them."""
    count = cute.size(made)
    ties = ["=f"] * count + [str(place) for place in range(count)]
    values = [made[place].ir_value() for place in range(count)]
    held = _nothing(llvm.StructType.get_literal([Float32.mlir_type] * count), values, ties)
    for place in range(count):
        made[place] = Float32(llvm.extractvalue(Float32.mlir_type, held, [place]))


def anew(number):
    """The same number, of which nothing is known from before."""
    return Int32(_nothing(Int32.mlir_type, [number.ir_value()], ["=r", "0"]))


def _nothing(returned, values, ties):
    """An instruction that is none, and that stays where it is: from these values to these registers."""
    return llvm.inline_asm(
        returned,
        values,
        "",
        ",".join(ties),
        has_side_effects=True,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
    )
