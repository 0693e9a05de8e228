"""Dense GEMM for sm_90 in CuTe DSL: TMA loads by a warp of its own, wgmma by up to three warpgroups, persistent.

C [M, N] = finish(A [M, K] @ B [K, N]). Compile processes load this file by its path; nothing else of genkern imports
it, since CuTe DSL is an optional extra. `build` is its entry.

A CTA has a warpgroup that loads and `groups` that multiply. Cooperative: all of them share a tile, 64 or 128 rows each;
or, `beside` each other, all of its 64 rows, and some of its columns.
Ping-pong: each has a tile of its own, and while one multiplies the other brings its sums to C. The programs of a
cluster have tiles beside each other; of what they have in common each loads a share of every block for all.

wgmma has 64 rows for a group, and any multiple of 8 columns. Upright its rows are C's. Swapped, it computes
C^T = B^T A^T: its rows are columns of C, and the side of a tile along M is the free one. Loads are the same; which
operand comes first to the product, and what is done with sums (epilogue_sm90), differ. `height` and `width` are a
tile's sides along wgmma's rows and columns.

M, N, K and GROUP_SIZE_M are run-time arguments, so that one binary serves every size. Whatever lies beyond them TMA
fills with zeros and does not store.

Where K is `split`, its parts are made like the products of a batch, each tile from some of the K-blocks, and C is their
sums in float32, [SPLIT_K, M, N]: a kernel behind this one adds them up, scales them and casts them.

Of a batch the matrices of an operand are one to TMA, each behind the one before as they are stored. What a tile loads
beyond M or N may be the next product's, and is not stored; K ends with a K-block, or with the rows of both operands.
"""

from __future__ import annotations

import copy

import cutlass
from cutlass import Float32, Int32, Int64, const_expr, cute, range_constexpr
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.nvgpu.common import OperandMajorMode

from genkern.templates.cute.arguments import TYPES, arguments_of
from genkern.templates.cute.epilogue_sm90 import ROWS, WARP, WARP_ROWS, Epilogue
from genkern.templates.cute.loads_sm90 import EARLY, EARLY_BYTES, Loads

GROUP = 128
# Registers of a thread that loads and of one that multiplies, by how many groups do: 64 Ki are an SM's.
REGISTERS = {1: (40, 240), 2: (40, 232), 3: (32, 160)}
# Named barriers of the ping-pong groups; 0 is the whole CTA's, and the epilogue has others.
TURN = 1


def build(symbol, constants):
    """What `cute.compile` takes: a function, which names its kernel `symbol`, and arguments to compile it for.

    `constants` are what the family says of a config (genkern/kernels/cute/dense.py), by name.
    """
    kernel = Dense(symbol, **constants)
    return kernel, arguments_of(kernel)


class Dense(Epilogue, Loads):
    """The kernel for one choice of constants.

    `part`: how much of the width goes out at a time by TMA, `swizzled` by 128 bytes or not at all; 0: from registers.
    Upright these are columns of C, by each warp for its rows; swapped rows of C, by each group for its 64 columns. As
    many may be on their way as there are `buffers`.
    `shared_bytes` is what a launch gives it: what the allocator below comes to.
    """

    def __init__(
        self, symbol, *, dtype_a, dtype_b, dtype_c, k_major_a, k_major_b, scales, bias, activation, block_m, block_n,
        block_k, cluster_m, cluster_n, swapped, ping_pong, stages, part, buffers, swizzled, warps, shared_bytes,
        left=0, batched=0, split=0, pairs=0,
    ):  # fmt: skip
        self.dtype_a, self.dtype_b, self.dtype_c = TYPES[dtype_a], TYPES[dtype_b], TYPES[dtype_c]
        self.k_major_a, self.k_major_b = bool(k_major_a), bool(k_major_b)
        self.scales, self.bias, self.activation = scales, bool(bias), activation
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.swapped = bool(swapped)
        self.height, self.width = (block_n, block_m) if swapped else (block_m, block_n)
        self.cluster_m, self.cluster_n = cluster_m, cluster_n
        self.cluster, self.tiles_m = cluster_m * cluster_n, cluster_m
        # CTAs that write into another's stages: those of its row and of its column.
        self.sharers = cluster_m + cluster_n - 1
        self.ping_pong, self.stages = bool(ping_pong), stages
        self.part, self.tma_store, self.swizzled = part, part > 0, bool(swizzled)
        # Rows and columns of C that go out at a time.
        self.box = (part, ROWS) if swapped else (WARP_ROWS, part)
        self.buffers = buffers
        self.warps = warps
        self.batched, self.split, self.pairs = bool(batched), bool(split), bool(pairs)
        self.groups = warps * WARP // GROUP - 1
        self.registers = REGISTERS[self.groups][1]
        self.beside = not self.ping_pong and self.groups > 1 and self.height == ROWS
        # Those below each other in a tile, and those that read a stage.
        self.groups_of_tile = 1 if self.ping_pong or self.beside else self.groups
        self.readers = 1 if self.ping_pong else self.groups
        # wgmmas that a group makes of a tile along its height.
        self.high = self.height // (ROWS * self.groups_of_tile)
        # Rows of A and B in a stage: what does not run along K comes 64 at a time.
        self.held_m, self.held_n = self.held(block_m, self.k_major_a), self.held(block_n, self.k_major_b)
        bytes_a, bytes_b = (held * block_k * self.dtype_a.width // 8 for held in (self.held_m, self.held_n))
        self.stage_bytes = bytes_a + bytes_b
        self.early = min(stages - 1, self.blocks_early(bytes_a, bytes_b))
        # Columns of all groups of a tile, those of the left one, and the first of one's own.
        self.tile_width, self.left, self.first = self.width, left, 0
        self.kernel.set_name_prefix(symbol, remove_cutlass_symbol=True, keep_mangled_name=False)

    def of_group(self, which):
        """The kernel as a group beside another has it: its columns of a tile alone, from `first` on."""
        own = copy.copy(self)
        own.first, own.width = (self.left, self.tile_width - self.left) if which else (0, self.left)
        return own

    def blocks_early(self, bytes_a, bytes_b):
        """Blocks of these bytes that are on their way before warps part, or, of a cluster, before its programs meet.

        Then it is those of the operand that nobody shares, and few: what is shared queues behind them. Of that each
        program would have to load all, which cost more than it brought (docs/kernels.md).
        """
        if self.cluster == 1:
            return EARLY
        if min(self.cluster_m, self.cluster_n) > 1:
            return 0
        return max(1, min(EARLY, EARLY_BYTES // (bytes_a if self.cluster_n == 1 else bytes_b)))

    def part_layout(self, rows, buffers):
        """Of a part of C in shared memory; of all buffers, where there are any."""
        shape = (rows, self.box[1], buffers) if buffers else (rows, self.box[1])
        if self.swizzled:
            atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, self.dtype_c)
            return cute.tile_to_shape(atom, shape, order=(0, 1, 2)[: len(shape)])
        return cute.make_layout(shape, stride=(self.part, 1, rows * self.part)[: len(shape)])

    def in_order(self, along_m, along_n):
        """What is of M and of N, as that of wgmma's rows and that of its columns; or the other way round."""
        return (along_n, along_m) if self.swapped else (along_m, along_n)

    def tiled_mma(self, width=0):
        """wgmma by all groups of a tile, of so many columns, or those of the tile."""
        width = width or self.width
        major = {True: OperandMajorMode.K, False: OperandMajorMode.MN}
        majors = self.in_order(major[self.k_major_a], major[self.k_major_b])
        types = self.in_order(self.dtype_a, self.dtype_b)
        shared = warpgroup.OperandSource.SMEM
        if self.dtype_a.width == 16:
            op = warpgroup.MmaF16BF16Op(self.dtype_a, Float32, (ROWS, width, 16), shared, *majors)
        else:
            op = warpgroup.MmaF8Op(*types, Float32, (ROWS, width, 32), shared, *majors)
        return cute.make_tiled_mma(cute.make_mma_atom(op), (self.groups_of_tile, 1, 1))

    # The host's part: compiled for the types that it gives to the kernel's parameters, and never run.
    @cute.jit
    def __call__(self, a, b, c, extras, sizes, programs: Int32, stream):
        one, shared = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileG2SMulticastOp()
        of_a = self.held_m, self.k_major_a, self.cluster_n
        of_b = self.held_n, self.k_major_b, self.cluster_m
        load_a, _ = cpasync.make_tiled_tma_atom(
            shared if self.cluster_n > 1 else one, a, self.share_layout(self.dtype_a, *of_a, 0), self.share(*of_a)
        )
        load_b, _ = cpasync.make_tiled_tma_atom(
            shared if self.cluster_m > 1 else one, b, self.share_layout(self.dtype_b, *of_b, 0), self.share(*of_b)
        )
        if const_expr(self.tma_store):
            c, _ = cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileS2GOp(), c, self.part_layout(self.box[0], 0), self.box
            )
        self.kernel(load_a, load_b, c, extras, sizes).launch(
            grid=(programs, 1, 1),
            block=(WARP * self.warps, 1, 1),
            cluster=(self.cluster, 1, 1),
            stream=stream,
            min_blocks_per_mp=1,
        )

    @cute.kernel
    def kernel(self, load_a: cute.CopyAtom, load_b: cute.CopyAtom, c, extras, sizes):
        """`sizes`: M, N, K, GROUP_SIZE_M, and C's leading dimension where no descriptor has it.

        Of a batch always that one, then how many products there are, and the step from one to the next of each pointer:
        C's, which is the first of `extras` where C has a descriptor, and those of the finish. Of a split K SPLIT_K is
        behind C's.
        """
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        program = cute.arch.block_idx()[0]
        smem = cutlass.utils.SmemAllocator()
        full, empty = smem.allocate_array(Int64, self.stages), smem.allocate_array(Int64, self.stages)
        a = self.stages_of(smem, self.dtype_a, self.held_m, self.k_major_a)
        b = self.stages_of(smem, self.dtype_b, self.held_n, self.k_major_b)
        parts = self.parts_of_groups(smem)
        if warp == 0:
            if const_expr(self.cluster == 1):
                self.prefetch(load_a, load_b)
            with cute.arch.elect_one():
                for stage in range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, 1)
                    cute.arch.mbarrier_init(empty + stage, self.readers * self.sharers)
            cute.arch.mbarrier_init_fence()
        if const_expr(self.cluster > 1):
            # The fence says to all of the cluster what the barriers are; there is nothing else to tell.
            cute.arch.cluster_arrive_relaxed()
            if warp == 0:
                self.prefetch(load_a, load_b, *self.stored_by(c))
        if const_expr(self.split):
            # The kernel that adds up may come when all programs are there; it waits for their end.
            cute.arch.griddepcontrol_launch_dependents()
        walk = self.walk(program, sizes)
        place = self.place_of(walk[0], walk)
        if const_expr(self.early):  # noqa: SIM102  this is known when it is compiled, the other is not
            if warp == 0:
                self.load_first(load_a, load_b, a, b, full, sizes, place)
        if const_expr(self.cluster > 1):
            cute.arch.cluster_wait()
        else:
            if warp == 0:
                self.prefetch(*self.stored_by(c))
            cute.arch.sync_threads()
        loading, multiplying = REGISTERS[self.groups]
        if warp < GROUP // WARP:
            cute.arch.setmaxregister_decrease(loading)
            if warp == 0:
                self.load(load_a, load_b, a, b, full, empty, sizes, walk, place)
        else:
            cute.arch.setmaxregister_increase(multiplying)
            which = warp // (GROUP // WARP) - 1
            rest = a, b, parts, full, empty, c, extras, sizes, cute.ceil_div(sizes[2], self.block_k), walk
            if const_expr(not self.beside):
                self.multiply(thread - GROUP, which, *rest)
            elif which == 0:
                self.of_group(0).multiply(thread - GROUP, which, *rest)
            else:
                self.of_group(1).multiply(thread - GROUP, which, *rest)

    def stored_by(self, c):
        """C's descriptor, where it has one."""
        return (c,) if self.tma_store else ()

    def parts_of_groups(self, smem):
        """Where the groups put parts of C for TMA to take, one below the other."""
        if not self.tma_store:
            return None
        # Of a group each warp has one, or all have one together.
        shares = self.groups if self.swapped else self.groups * (GROUP // WARP)
        layout = self.part_layout(self.box[0] * shares, self.buffers)
        if self.swizzled:
            return smem.allocate_tensor(self.dtype_c, layout.outer, 1024, layout.inner)
        return smem.allocate_tensor(self.dtype_c, layout, 128)

    @cute.jit
    def multiply(self, thread, which, a, b, parts, full, empty, c, extras, sizes, blocks: Int32, walk):
        """A multiplying warpgroup, number `which`: whole tiles of C, or its share of the height of each."""
        first, turns, step, _, _, _, rank_m, rank_n = walk
        mma = self.tiled_mma()
        own = mma.get_slice(thread % GROUP if self.groups_of_tile == 1 else thread)
        of_rows, of_columns = self.in_order(a, b)
        rows = mma.make_fragment_A(own.partition_A(of_rows))
        if const_expr(self.beside):
            of_columns = self.some_rows(of_columns, self.first, self.width)
        # Where a stage holds more columns than wgmma multiplies, they lie as for one that multiplies all.
        holding = self.tiled_mma(cute.size(of_columns, mode=[0]))
        columns = holding.make_fragment_B(holding.get_slice(0).partition_B(of_columns))
        sums = cute.make_rmem_tensor(mma.partition_shape_C((self.height, self.width)), Float32)
        stage, phase, used = Int32(0), Int32(0), Int32(0)
        if const_expr(self.ping_pong):
            if which == 1:
                cute.arch.barrier_arrive(barrier_id=TURN, number_of_threads=2 * GROUP)
                used = blocks
            first += which * step
            step *= 2
        for turn in cutlass.range(first, turns, step, unroll=1):
            product, tile_m, tile_n = self.place_of(turn, walk)
            tile_row, tile_column = self.in_order(tile_m, tile_n)
            # Where the group's first wgmma of the tile has its first row, along M or N, and its first column.
            row = tile_row * self.height + (0 if self.groups_of_tile == 1 else which * ROWS)
            column = tile_column * self.tile_width + self.first
            own_c, own_extras = self.of_product(product, c, extras, sizes)
            if const_expr(self.reads_early):
                values = self.read(row, column, thread % GROUP, own_extras, sizes)
            if const_expr(self.ping_pong):
                # The stages between are the other group's.
                stage, phase = used % self.stages, used // self.stages & 1
                used += 2 * blocks
                cute.arch.barrier(barrier_id=TURN + which, number_of_threads=2 * GROUP)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            if const_expr(self.split):
                first_block, last_block = self.blocks_of(product, sizes[2], sizes)
                blocks = last_block - first_block
            before = stage
            for block in cutlass.range(blocks, unroll=1):
                cute.arch.mbarrier_wait(full + stage, phase)
                warpgroup.fence()
                for step_k in range_constexpr(cute.size(rows, mode=[2])):
                    at = (None, None, step_k, stage)
                    cute.gemm(mma, sums, rows[at], columns[at], sums)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                # One wgmma may be on its way; the stage of the one before it is free.
                warpgroup.wait_group(1)
                if block > 0:
                    self.release(empty + before, thread % GROUP, rank_m, rank_n)
                before = stage
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
            if const_expr(self.ping_pong):
                cute.arch.barrier_arrive(barrier_id=TURN + 1 - which, number_of_threads=2 * GROUP)
            warpgroup.wait_group(0)
            self.release(empty + before, thread % GROUP, rank_m, rank_n)
            flat = cute.make_tensor(
                sums.iterator, cute.make_layout((4, self.width // 8, self.high), stride=(1, 4, self.width // 2))
            )
            if const_expr(not self.reads_early):
                values = self.read(row, column, thread % GROUP, own_extras, sizes)
            self.finish(flat, values)
            if const_expr(self.tma_store):
                self.store(flat, parts, row, column, thread % GROUP, which, own_c, sizes)
            else:
                self.write(flat, row, column, thread % GROUP, own_c, sizes)
        if const_expr(self.tma_store):
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def release(self, barrier, thread, rank_m, rank_n):
        """Say that this group has read a stage, to every program that writes to it: each to another thread's.

        These are of all four warps, by turns. A product is the group's: what one of its warps waited for is complete.
        """
        number = thread % WARP * (GROUP // WARP) + thread // WARP
        if const_expr(self.cluster == 1):
            if number == 0:
                cute.arch.mbarrier_arrive(barrier)
        else:
            peer = rank_m + number * self.cluster_m
            if number >= self.cluster_n:
                other = number - self.cluster_n
                if other >= rank_m:
                    other += 1
                peer = rank_n * self.cluster_m + other
            if number < self.sharers:
                cute.arch.mbarrier_arrive(barrier, peer)
