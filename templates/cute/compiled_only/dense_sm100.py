"""Dense GEMM for sm_100 in CuTe DSL: TMA loads by one warp, tcgen05.mma by another, C by four; persistent. NEVER RUN.

C [M, N] = finish(A [M, K] @ B [K, N]). Compile processes load this file by its path; nothing else of genkern imports
it, since CuTe DSL is an optional extra. `build` is its entry. Compiled for sm_100a only: nobody has had such a GPU.

Terms. A tile is what one tcgen05.mma makes of C: block_m x block_n (mma_tiler_mn of NVIDIA's guide). It is one CTA's,
or, with two CTAs (use_2cta_instrs), half of its rows are in each; they have even and odd rank, and the even one leads:
it alone issues the product, which reads both CTAs' shared memory and writes both's tensor memory. Each CTA loads its
half of the tile's rows of A and its half of the columns of B. A cluster has cluster_m x cluster_n CTAs, their tiles
beside each other; a block of A is loaded once for all CTAs of a row of it, by each in turn, and a block of B for
those of a column (of the same parity: the two CTAs of a pair have other rows of A and other columns of B).

Why it should be right, barrier by barrier, is in protocol_sm100, with who loads for whom.
"""

from __future__ import annotations

import cutlass
from cutlass import Float32, Int8, Int16, Int32, Int64, const_expr, cute, range_constexpr
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import cpasync, tcgen05
from cutlass.cute.nvgpu.common import OperandMajorMode
from cutlass.utils import blackwell_helpers

from genkern.templates.cute.arguments import TYPES, arguments_of
from genkern.templates.cute.compiled_only.epilogue_sm100 import WARP, Epilogue
from genkern.templates.cute.compiled_only.protocol_sm100 import Sharing
from genkern.templates.cute.finish import coordinates
from genkern.templates.cute.walk import Walk

# Warps 0 to 3 bring C: a warp may read the lanes of tensor memory of its number modulo 4.
STORING, MULTIPLIES, LOADS = 4, 4, 5
# Tiles that may be in tensor memory at once.
ACCUMULATORS = 2


def build(symbol, constants):
    """What `cute.compile` takes: a function, which names its kernel `symbol`, and arguments to compile it for.

    `constants` are what the family says of a config (genkern/kernels/cute/dense_sm100.py), by name.
    """
    kernel = Dense(symbol, **constants)
    return kernel, arguments_of(kernel)


class Dense(Epilogue, Walk):
    """The kernel for one choice of constants.

    `ctas` that share a tile, 1 or 2. `columns` of tensor memory that a CTA allocates. `part`: columns of C that a warp
    brings at a time; with `tma_store` each warp may have as many on their way as it has `buffers`, swizzled by a
    part's bytes. `spare_bytes` of shared memory keep others away; `shared_bytes` is what a launch gives.
    """

    def __init__(
        self, symbol, *, dtype_a, dtype_b, dtype_c, k_major_a, k_major_b, scales, bias, activation, block_m, block_n,
        block_k, cluster_m, cluster_n, ctas, stages, columns, tma_store, part, buffers, spare_bytes, warps,
        shared_bytes,
    ):  # fmt: skip
        self.dtype_a, self.dtype_b, self.dtype_c = TYPES[dtype_a], TYPES[dtype_b], TYPES[dtype_c]
        self.k_major_a, self.k_major_b = bool(k_major_a), bool(k_major_b)
        self.scales, self.bias, self.activation = scales, bool(bias), activation
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.cluster_m, self.cluster_n, self.ctas = cluster_m, cluster_n, ctas
        self.cluster = cluster_m * cluster_n
        self.sharing = Sharing(cluster_m, cluster_n, ctas)
        self.tiles_m = self.sharing.pairs_m
        self.stages, self.columns = stages, columns
        self.tma_store, self.part, self.buffers = bool(tma_store), part, buffers
        self.spare_bytes, self.warps = spare_bytes, warps
        # Rows of a tile in one CTA, and where tensor memory has them.
        self.rows = block_m // ctas
        self.halves = 2 if ctas == 2 and self.rows == 64 else 1
        self.warp_rows = 16 if ctas == 1 and self.rows == 64 else WARP
        self.group = tcgen05.CtaGroup.TWO if ctas == 2 else tcgen05.CtaGroup.ONE
        self.stage_bytes = (self.rows * self.dtype_a.width + block_n // ctas * self.dtype_b.width) * block_k // 8
        self.kernel.set_name_prefix(symbol, remove_cutlass_symbol=True, keep_mangled_name=False)

    def tiled_mma(self):
        major = {True: OperandMajorMode.K, False: OperandMajorMode.MN}
        majors = major[self.k_major_a], major[self.k_major_b]
        shared, shape = tcgen05.OperandSource.SMEM, (self.block_m, self.block_n)
        if self.dtype_a.width == 16:
            op = tcgen05.MmaF16BF16Op(self.dtype_a, Float32, (*shape, 16), self.group, shared, *majors)
        else:
            types = self.dtype_a, self.dtype_b, Float32
            op = tcgen05.MmaF8F6F4Op(*types, (*shape, 32), self.group, shared, *majors)
        return cute.make_tiled_mma(cute.make_mma_atom(op))

    @property
    def tile(self):
        return self.block_m, self.block_n, self.block_k

    def operand_layouts(self, mma):
        """Of all stages of A, and of B, in one CTA's shared memory, as the product reads them."""
        return (
            blackwell_helpers.make_smem_layout_a(mma, self.tile, self.dtype_a, self.stages),
            blackwell_helpers.make_smem_layout_b(mma, self.tile, self.dtype_b, self.stages),
        )

    def part_layout(self, rows, buffers):
        """Of a part of C in shared memory, swizzled by as many bytes as its rows have; of all buffers, if any."""
        kinds = tcgen05.SmemLayoutAtomKind
        kind = kinds.K_SW128 if self.part * self.dtype_c.width == 1024 else kinds.K_SW64
        shape = (rows, self.part, buffers) if buffers else (rows, self.part)
        atom = tcgen05.make_smem_layout_atom(kind, self.dtype_c)
        return cute.tile_to_shape(atom, shape, order=(0, 1, 2)[: len(shape)])

    # The host's part: compiled for the types that it gives to the kernel's parameters, and never run.
    @cute.jit
    def __call__(self, a, b, c, extras, sizes, programs: Int32, stream):
        one = cpasync.CopyBulkTensorTileG2SOp(self.group)
        shared = cpasync.CopyBulkTensorTileG2SMulticastOp(self.group)
        mma = self.tiled_mma()
        block_a, block_b = self.operand_layouts(mma)
        # Whole blocks, whoever they are for: one of those that share a block loads all of it.
        alone = (self.ctas, 1, 1, 1)
        load_a, _ = cute.nvgpu.make_tiled_tma_atom_A(
            shared if self.cluster_n > 1 else one, a, cute.select(block_a, mode=[0, 1, 2]), self.tile, mma, alone
        )
        load_b, _ = cute.nvgpu.make_tiled_tma_atom_B(
            shared if self.tiles_m > 1 else one, b, cute.select(block_b, mode=[0, 1, 2]), self.tile, mma, alone
        )
        if const_expr(self.tma_store):
            c, _ = cpasync.make_tiled_tma_atom(
                *(cpasync.CopyBulkTensorTileS2GOp(), c, self.part_layout(self.warp_rows, 0)),
                (self.warp_rows, self.part),
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
        """`sizes`: M, N, K, GROUP_SIZE_M, and C's leading dimension where no descriptor has it."""
        thread = cute.arch.thread_idx()[0]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        program = cute.arch.block_idx()[0]
        smem = cutlass.utils.SmemAllocator()
        full, empty = smem.allocate_array(Int64, self.stages), smem.allocate_array(Int64, self.stages)
        made, read = smem.allocate_array(Int64, ACCUMULATORS), smem.allocate_array(Int64, ACCUMULATORS)
        address = smem.allocate_array(Int32, 1)
        mma = self.tiled_mma()
        layout_a, layout_b = self.operand_layouts(mma)
        a = smem.allocate_tensor(self.dtype_a, layout_a.outer, 1024, layout_a.inner)
        b = smem.allocate_tensor(self.dtype_b, layout_b.outer, 1024, layout_b.inner)
        parts = None
        if const_expr(self.tma_store):
            layout = self.part_layout(STORING * self.warp_rows, self.buffers)
            parts = smem.allocate_tensor(self.dtype_c, layout.outer, 1024, layout.inner)
        if const_expr(self.spare_bytes > 0):
            smem.allocate_array(Int8, self.spare_bytes)
        two = self.ctas == 2
        if warp == LOADS:
            with cute.arch.elect_one():
                for stage in range_constexpr(self.stages):
                    cute.arch.mbarrier_init(full + stage, self.sharing.arrivals)
                    cute.arch.mbarrier_init(empty + stage, self.sharing.readers)
                for which in range_constexpr(ACCUMULATORS):
                    cute.arch.mbarrier_init(made + which, 1)
                    cute.arch.mbarrier_init(read + which, STORING * self.ctas)
            cute.arch.mbarrier_init_fence()
            cpasync.prefetch_descriptor(load_a)
            cpasync.prefetch_descriptor(load_b)
            if const_expr(self.tma_store):
                cpasync.prefetch_descriptor(c)
        if warp == 0:
            cute.arch.alloc_tmem(self.columns, address, is_two_cta=two)
            cute.arch.relinquish_tmem_alloc_permit(is_two_cta=two)
        self.meet()
        at = cute.arch.retrieve_tmem_ptr(Float32, 16, address)
        fragment = mma.make_fragment_C(cute.append(mma.partition_shape_C((self.block_m, self.block_n)), ACCUMULATORS))
        sums = cute.make_tensor(at, fragment.layout)
        m, n, k = sizes[0], sizes[1], sizes[2]
        walk = self.walk(program, sizes)
        rank = program % self.cluster
        half = rank % self.cluster_m % self.ctas
        if warp < STORING:
            self.bring_tiles(thread, sums, made, read, parts, rank, half, c, extras, sizes, walk)
        elif warp == MULTIPLIES:
            if half == 0:
                self.multiply(mma, a, b, sums, full, empty, made, read, cute.ceil_div(k, self.block_k), rank, walk)
        else:
            self.load(mma, load_a, load_b, a, b, full, empty, m, n, k, half, walk)
        self.meet()
        if warp == 0:
            cute.arch.dealloc_tmem(at, self.columns, is_two_cta=two)

    @cute.jit
    def load(self, mma, load_a, load_b, a, b, full, empty, m: Int32, n: Int32, k: Int32, half: Int32, walk):
        """The loading warp: blocks of A and B into the stages, round and round; at the end until all are free."""
        first, turns, step, _, _, _, pair_m, rank_n = walk
        own = mma.get_slice(half)
        blocks_a = cute.local_tile(coordinates(m, k, self.k_major_a), (self.block_m, self.block_k), (None, None))
        blocks_b = cute.local_tile(coordinates(n, k, self.k_major_b), (self.block_n, self.block_k), (None, None))
        to_a, from_a = self.copies(load_a, a, own.partition_A(blocks_a))
        to_b, from_b = self.copies(load_b, b, own.partition_B(blocks_b))
        mask_a = Int16(self.sharing.with_same_a(pair_m, half))
        mask_b = Int16(self.sharing.with_same_b(rank_n, half))
        stage, phase, loaded = Int32(0), Int32(1), Int32(0)
        for turn in cutlass.range(first, turns, step, unroll=1):
            tile_m, tile_n = self.tile_at(turn, walk)
            for block in cutlass.range(cute.ceil_div(k, self.block_k), unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                arrived = full + stage
                self.announce(arrived, half, pair_m, rank_n)
                if const_expr(self.cluster_n == 1):
                    cute.copy(load_a, from_a[None, tile_m, block], to_a[None, stage], tma_bar_ptr=arrived)
                elif loaded % self.cluster_n == rank_n:
                    source, target = from_a[None, tile_m, block], to_a[None, stage]
                    cute.copy(load_a, source, target, tma_bar_ptr=arrived, mcast_mask=mask_a)
                if const_expr(self.tiles_m == 1):
                    cute.copy(load_b, from_b[None, tile_n, block], to_b[None, stage], tma_bar_ptr=arrived)
                elif loaded % self.tiles_m == pair_m:
                    source, target = from_b[None, tile_n, block], to_b[None, stage]
                    cute.copy(load_b, source, target, tma_bar_ptr=arrived, mcast_mask=mask_b)
                loaded += 1
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
        for _ in cutlass.range(self.stages, unroll=1):
            cute.arch.mbarrier_wait(empty + stage, phase)
            stage += 1
            if stage == self.stages:
                stage = Int32(0)
                phase ^= 1

    @cute.jit
    def announce(self, barrier, half: Int32, pair_m: Int32, rank_n: Int32):
        """Say that this CTA's stage is free: to its pair with how much comes, to every other pair that reads of it."""
        if const_expr(self.sharing.readers == 1):
            if half == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, self.stage_bytes * self.ctas)
        else:
            if half == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_expect_tx(barrier, self.stage_bytes * self.ctas)
            cute.arch.sync_warp()
            # Each lane to the leader of another pair: those of the row, then the others of the column.
            lane = cute.arch.lane_idx()
            leader = pair_m * self.ctas + lane * self.cluster_m
            if lane >= self.cluster_n:
                other = lane - self.cluster_n
                if other >= pair_m:
                    other += 1
                leader = other * self.ctas + rank_n * self.cluster_m
            if lane < self.sharing.readers:
                cute.arch.mbarrier_arrive(barrier, leader)

    def copies(self, load, stages, blocks):
        """The stages that copies go to, and blocks as their descriptor counts, [.., tile, K-block]."""
        return cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(stages, 0, 3), cute.group_modes(blocks, 0, 3)
        )

    @cute.jit
    def multiply(self, mma, a, b, sums, full, empty, made, read, blocks: Int32, rank: Int32, walk):
        """The leader's multiplying warp: whole tiles into one accumulator after the other.

        One thread issues products and commits, the same one each time (elect.sync of a whole warp), as a commit is of
        what its own thread has issued.
        """
        first, turns, step, _, _, _, pair_m, rank_n = walk
        rows, columns = mma.make_fragment_A(a), mma.make_fragment_B(b)
        loaders = Int16(self.sharing.loaders(pair_m, rank_n))
        both = Int16(self.sharing.pair_of(rank))
        stage, phase, which, other = Int32(0), Int32(0), Int32(0), Int32(1)
        for _ in cutlass.range(first, turns, step, unroll=1):
            cute.arch.mbarrier_wait(read + which, other)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            tile = sums[None, None, None, which]
            mma.set(tcgen05.Field.ACCUMULATE, False)
            for _block in cutlass.range(blocks, unroll=1):
                cute.arch.mbarrier_wait(full + stage, phase)
                nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
                for step_k in range_constexpr(cute.size(rows, mode=[2])):
                    at = (None, None, step_k, stage)
                    cute.gemm(mma, tile, rows[at], columns[at], tile)
                    mma.set(tcgen05.Field.ACCUMULATE, True)
                self.commit(empty + stage, loaders, self.cluster > 1)
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
            self.commit(made + which, both, self.ctas > 1)
            which += 1
            if which == ACCUMULATORS:
                which = Int32(0)
                other ^= 1

    @cute.jit
    def commit(self, barrier, mask, is_shared):
        """Arrive at a barrier, here or in all CTAs of the mask, when this thread's products are complete."""
        with cute.arch.elect_one():
            tcgen05.commit(barrier, mask if is_shared else None, self.group)

    @cute.jit
    def bring_tiles(self, thread, sums, made, read, parts, rank: Int32, half: Int32, c, extras, sizes, walk):
        """The four storing warps: this CTA's rows of each tile."""
        first, turns, step, _, _, _, _, _ = walk
        which, phase = Int32(0), Int32(0)
        for turn in cutlass.range(first, turns, step, unroll=1):
            cute.arch.mbarrier_wait(made + which, phase)
            nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC)
            tile_m, tile_n = self.tile_at(turn, walk)
            row, column = tile_m * self.block_m + half * self.rows, tile_n * self.block_n
            self.bring(thread, sums, which, (read + which, rank - half), parts, row, column, c, extras, sizes)
            which += 1
            if which == ACCUMULATORS:
                which = Int32(0)
                phase ^= 1
        if const_expr(self.tma_store):
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    @cute.jit
    def let_go(self, read):
        """Say to the leader of the pair that this warp has a tile's sums."""
        barrier, leader = read
        nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC)
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            if const_expr(self.ctas > 1):
                cute.arch.mbarrier_arrive(barrier, leader)
            else:
                cute.arch.mbarrier_arrive(barrier)
