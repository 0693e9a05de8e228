"""How the persistent kernels in CuTe DSL go over C: a cluster of programs has tiles beside each other, turn by turn."""

from __future__ import annotations

import cutlass
from cutlass import Int32, const_expr, cute


class Walk:
    """For a kernel whose tiles are `block_m` x `block_n`, by clusters of `cluster` programs, `cluster_m` of them along
    M, that have `tiles_m` x `cluster_n` tiles at a time: Dense says of each. `batched`: they have the tiles of all
    products of a batch, one product after the other; `sizes` say behind C's leading dimension how many there are.
    `split`: so it is with the parts of K.
    """

    batched = split = False

    @property
    def several(self):
        """Whether the tiles of C are made several times: for the products of a batch, or the parts of K."""
        return self.batched or self.split

    def walk(self, program, sizes):
        """A program's: the first turn of its cluster, turns of all, those that are made at a time, turns along M and
        along N, GROUP_SIZE_M, and the place of its tile in the cluster.
        """
        turns_m = cute.ceil_div(sizes[0], self.block_m * self.tiles_m)
        turns_n = cute.ceil_div(sizes[1], self.block_n * self.cluster_n)
        rank = program % self.cluster
        return (
            program // self.cluster,
            turns_m * turns_n * sizes[5] if self.several else turns_m * turns_n,
            cute.arch.grid_dim()[0] // self.cluster,
            turns_m,
            turns_n,
            sizes[3],
            rank % self.cluster_m // (self.cluster_m // self.tiles_m),
            rank // self.cluster_m,
        )

    def product_at(self, turn, walk):
        """Which product of a batch a turn is of, or which part of K, and its number among the turns of that."""
        if not self.several:
            return 0, turn
        turns_of_product = walk[3] * walk[4]
        return turn // turns_of_product, turn % turns_of_product

    @cute.jit
    def tile_at(self, turn: Int32, walk):
        """Row and column, in tiles, of this program's tile in a turn of its cluster: GROUP_SIZE_M turns along M, then
        the next along N.
        """
        _, _, _, turns_m, turns_n, group, place_m, place_n = walk
        row, column = turn // (group * turns_n), turn % (group * turns_n)
        # The second division is saved where it would be by one: it is in the way of the first load.
        if group > 1:
            first = row * group
            rows = cutlass.min(turns_m - first, group)
            row = first + column % rows
            column = column // rows
        return row * self.tiles_m + place_m, column * self.cluster_n + place_n

    def place_of(self, turn, walk):
        """The product of a turn, or its part of K, and row and column of this program's tile, computed here and not
        where they are used.

        That takes two divisions, some hundred clocks each, which compilers move to where they are waited for: behind
        the last product of a tile, or behind the meeting of a cluster.
        """
        product, turn_of_product = self.product_at(turn, walk)
        tile_m, tile_n = self.tile_at(turn_of_product, walk)
        here = cute.arch.make_warp_uniform
        return here(product) if self.several else product, here(tile_m), here(tile_n)

    def blocks_of(self, part, k, sizes):
        """A part's first K-block, and the one behind its last: shares of all that differ by one at most."""
        blocks = cute.ceil_div(k, self.block_k)
        if not self.split:
            return Int32(0), blocks
        return part * blocks // sizes[5], (part + 1) * blocks // sizes[5]

    @cute.jit
    def meet(self):
        """All threads of a cluster: what each wrote before, all see behind it."""
        if const_expr(self.cluster > 1):
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
