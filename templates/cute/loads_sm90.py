"""How blocks of A and B come to shared memory in the kernels for sm_90: stages, shares of a cluster, the loading warp.

A stage has a block of A's rows of a tile and one of B's, 128 bytes along K. What does not run along K comes in boxes of
64 by 64, of which a stage holds whole ones. Of what programs of a cluster have in common each loads a share for all.
"""

from __future__ import annotations

import cutlass
from cutlass import Int16, Int32, const_expr, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from genkern.templates.cute.finish import coordinates
from genkern.templates.cute.walk import Walk

# Rows of an operand that runs along them in memory which lie beside each other in shared memory.
TURNED = 64
# Blocks that the kernel begins to load before warps part, and, of one operand, before the programs of a cluster meet:
# so many bytes at most, or one block.
EARLY, EARLY_BYTES = 4, 16 * 1024


class Loads(Walk):
    """For a kernel of `stages` stages of `stage_bytes`: blocks of `block_m` rows of A and `block_n` of B, in room for
    `held_m` and `held_n`, by `block_k`; `k_major_a` and `_b`: they run along K. `load_first` begins `early` blocks.
    Programs of a cluster are `cluster_m` by `cluster_n`: Dense says of each.
    """

    @staticmethod
    def held(rows, k_major):
        """Of so many rows of a tile, how many a stage holds."""
        return rows if k_major else -(-rows // TURNED) * TURNED

    def operand_layout(self, dtype, rows, k_major):
        """Of the blocks of A or B in all stages of shared memory, with 128-byte swizzle."""
        kinds = warpgroup.SmemLayoutAtomKind
        atom = warpgroup.make_smem_layout_atom(kinds.K_SW128 if k_major else kinds.MN_SW128, dtype)
        order = (0, 1, 2) if k_major else (1, 0, 2)
        return cute.tile_to_shape(atom, (rows, self.block_k, self.stages), order=order)

    def some_rows(self, stages, first, rows):
        """Of an operand in all stages so many rows from `first` on, which begins eight of them, or a box; and what a
        stage holds besides of the last box.
        """
        dtype, whole = stages.element_type, cute.size(stages, mode=[0])
        k_major = self.k_major_a if self.swapped else self.k_major_b
        kinds = warpgroup.SmemLayoutAtomKind
        atom = warpgroup.make_smem_layout_atom(kinds.K_SW128 if k_major else kinds.MN_SW128, dtype)
        shape, order = (self.held(rows, k_major), self.block_k), (0, 1) if k_major else (1, 0)
        stage = cute.tile_to_shape(atom, shape, order=order).outer
        layout = cute.append(stage, cute.make_layout(self.stages, stride=whole * self.block_k))
        return cute.make_tensor(stages.iterator + first * self.block_k, layout)

    def share(self, rows, k_major, sharers):
        """Of a block of A or B what one of its `sharers` loads for all: rows where they run along K, else some of K.

        Each then writes to every stage, so that none is full before all have seen that it was empty.
        """
        return (rows // sharers, self.block_k) if k_major else (rows, self.block_k // sharers)

    def share_layout(self, dtype, rows, k_major, sharers, stages):
        """Where a share of each stage lies: as `operand_layout`, from the share's own first element on."""
        kinds = warpgroup.SmemLayoutAtomKind
        swizzle = warpgroup.make_smem_layout_atom(kinds.K_SW128 if k_major else kinds.MN_SW128, dtype).inner
        if k_major:
            shape, stride = self.share(rows, k_major, sharers), (self.block_k, 1)
        else:
            # 64 rows beside each other, for all of K, then the next.
            shape = ((TURNED, rows // TURNED), self.block_k // sharers)
            stride = ((1, TURNED * self.block_k), TURNED)
        if stages:
            shape, stride = (*shape, stages), (*stride, rows * self.block_k)
        return cute.make_composed_layout(swizzle, 0, cute.make_layout(shape, stride=stride))

    def prefetch(self, *descriptors):
        for descriptor in descriptors:
            cpasync.prefetch_descriptor(descriptor)

    def stages_of(self, smem, dtype, rows, k_major):
        layout = self.operand_layout(dtype, rows, k_major)
        return smem.allocate_tensor(dtype, layout.outer, 1024, layout.inner)

    @cute.jit
    def load_first(self, load_a, load_b, a, b, full, sizes, place):
        """The loading warp: the first blocks of its first tile; in a cluster, which has not met yet, of the operand
        that no other program has a share of.
        """
        product, tile_m, tile_n = place
        m, n, k = sizes[0], sizes[1], sizes[2]
        first, last = self.blocks_of(product, k, sizes)
        if const_expr(self.cluster_n == 1):
            from_a, to_a = self.copies(load_a, a, m, k, self.block_m, self.k_major_a, 1, 0, product, tile_m)
        if const_expr(self.cluster_m == 1):
            from_b, to_b = self.copies(load_b, b, n, k, self.block_n, self.k_major_b, 1, 0, product, tile_n)
        for block in cutlass.range(self.begun_of(first, last), unroll=1):
            arrived = full + block
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, self.stage_bytes)
            if const_expr(self.cluster_n == 1):
                cute.copy(load_a, from_a[None, tile_m, first + block], to_a[None, block], tma_bar_ptr=arrived)
            if const_expr(self.cluster_m == 1):
                cute.copy(load_b, from_b[None, tile_n, first + block], to_b[None, block], tma_bar_ptr=arrived)

    def begun_of(self, first, last):
        """How many blocks of the first tile `load_first` begins."""
        return cutlass.min(last - first, self.early) if self.early else Int32(0)

    @cute.jit
    def load(self, load_a, load_b, a, b, full, empty, sizes, walk, place):
        """The loading warp: blocks of A and B into the stages, round and round, behind those of `load_first`, of which
        a cluster's programs bring what they share.

        `place`: of its first tile.
        """
        first, turns, step, _, _, _, rank_m, rank_n = walk
        m, n, k = sizes[0], sizes[1], sizes[2]
        product, tile_m, tile_n = place
        first_block, last_block = self.blocks_of(product, k, sizes)
        begun = self.begun_of(first_block, last_block)
        of_a = load_a, a, m, k, self.block_m, self.k_major_a, self.cluster_n, rank_n
        of_b = load_b, b, n, k, self.block_n, self.k_major_b, self.cluster_m, rank_m
        from_a, to_a = self.copies(*of_a)
        from_b, to_b = self.copies(*of_b)
        # Programs of one row of a cluster have A in common, those of a column B.
        mask_a = Int16(sum(1 << (place * self.cluster_m) for place in range(self.cluster_n)) << rank_m)
        mask_b = Int16(((1 << self.cluster_m) - 1) << (rank_n * self.cluster_m))
        shares_a = load_a, to_a, self.k_major_a, self.cluster_n, rank_n, mask_a
        shares_b = load_b, to_b, self.k_major_b, self.cluster_m, rank_m, mask_b
        stage, phase = begun, Int32(1)
        for turn in cutlass.range(first, turns, step, unroll=1):
            own_a, own_b = from_a, from_b
            if const_expr(self.batched or self.held_m > self.block_m):
                own_a, _ = self.copies(*of_a, product, tile_m)
            if const_expr(self.batched or self.held_n > self.block_n):
                own_b, _ = self.copies(*of_b, product, tile_n)
            if const_expr(self.early and self.cluster > 1):
                # What `load_first` left of its blocks.
                for number in cutlass.range(begun, unroll=1):
                    if const_expr(self.cluster_n > 1):
                        self.bring(shares_a, own_a, tile_m, first_block + number, number, full + number)
                    if const_expr(self.cluster_m > 1):
                        self.bring(shares_b, own_b, tile_n, first_block + number, number, full + number)
            for block in cutlass.range(first_block + begun, last_block, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                arrived = full + stage
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(arrived, self.stage_bytes)
                self.bring(shares_a, own_a, tile_m, block, stage, arrived)
                self.bring(shares_b, own_b, tile_n, block, stage, arrived)
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1
            begun = Int32(0)
            product, tile_m, tile_n = self.place_of(cutlass.min(turn + step, turns - 1), walk)
            if const_expr(self.split):
                first_block, last_block = self.blocks_of(product, k, sizes)
        if const_expr(self.cluster > 1):
            # Nobody ends while another may still say that it has read a stage. What comes to its own it waits for.
            for _ in cutlass.range(self.stages, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                stage += 1
                if stage == self.stages:
                    stage = Int32(0)
                    phase ^= 1

    def bring(self, shares, source, tile, block, stage, arrived):
        """This program's share of a block of an operand to a stage of all that have the operand's tile in common."""
        load, to, k_major, sharers, rank, mask = shares
        # Its number, along the operand's rows and along K.
        share = (tile * sharers + rank, block) if k_major else (tile, block * sharers + rank)
        if sharers == 1:
            cute.copy(load, source[(None, *share)], to[None, stage], tma_bar_ptr=arrived)
        else:
            cute.copy(load, source[(None, *share)], to[None, stage], tma_bar_ptr=arrived, mcast_mask=mask)

    def copies(self, load, stages, rows, k, block, k_major, sharers, rank, product=None, tile=None):
        """Shares of an operand, or of that of a product of a batch, as its descriptor counts, [.., rows, along K], and
        where this program's lie in the stages.

        Where a stage holds more rows than a tile has, those of another tile begin `tile` tiles further on.
        """
        matrix, held = coordinates(rows, k, k_major), self.held(block, k_major)
        if const_expr(self.batched) and product is not None:
            matrix = cute.domain_offset((product * rows, 0) if k_major else (0, product * k), matrix)
        if const_expr(held > block) and tile is not None:
            # `bring` counts by what is held.
            matrix = cute.domain_offset((tile * (block - held), 0), matrix)
        shares = cute.local_tile(matrix, self.share(held, k_major, sharers), (None, None))
        layout = self.share_layout(stages.element_type, held, k_major, sharers, self.stages)
        before = rank * (held // sharers * self.block_k if k_major else TURNED * self.block_k // sharers)
        own = cute.make_tensor(stages.iterator + before, layout.outer)
        to, source = cpasync.tma_partition(
            load, 0, cute.make_layout(1), cute.group_modes(own, 0, 2), cute.group_modes(shares, 0, 2)
        )
        return source, to
