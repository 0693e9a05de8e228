"""How the warps of a cluster wait for each other in the kernel for sm_100 (dense_sm100), and who loads for whom.

Why it should be right, barrier by barrier ("full", "empty": one each for a stage; "made", "read": for an accumulator).
A wait for phase p returns once the barrier has completed phase p, and at the beginning for 1.

full, of the leader alone: `stage_bytes` of each CTA of the pair, of which its loading warp says how many come, and 1
  arrival of the loading warp of every CTA that `empty` below names, that one has found its own stage free; with one
  pair in the cluster only the leader's. Copies of both CTAs count towards the leader's barrier (the copy with
  cta_group::2 drops the bit of the odd rank from the address). A copy of the other CTA, or of a neighbour, may land
  before the leader has armed this phase: bytes are then negative for a while, and the phase cannot end, as the leader's
  own arrival is outstanding. A copy cannot land a
  phase early, since whoever issues it has waited for its own `empty`, at which the pairs that it writes to arrive after
  this phase's forerunner. Waited for by the leader's multiplying warp, from phase 0.
empty, 1 arrival from each pair of the cluster that reads what this CTA loads: the pairs of its row (its A) and of its
  column (its B), its own once: pairs_m + cluster_n - 1. The arrival is a tcgen05.commit of that pair's leader, after
  the products that read the stage, multicast to both CTAs of all such pairs. That set is symmetric: x is in the row or
  the column of y if y is in x's. Waited for by the loading warp, from phase 1, so that the first round finds all free.
  No pair arrives twice in a phase, in the place of one that is late: its next products in this stage wait for `full`,
  at which every CTA arrives that it would tell, behind that CTA's own wait for `empty`. (Without these arrivals it
  might: in a cluster of 2x2 a CTA may have all that it needs from itself, while its neighbour still waits for another.)
made, 1 arrival: the commit of the leader after a tile's last product, multicast to the pair. Waited for by the four
  storing warps of both CTAs, from phase 0.
read, of the leader alone, 4 arrivals of each CTA of the pair: one thread of each warp, once the sums are in registers.
  Waited for by the leader's multiplying warp before a tile's first product, from phase 1. Two accumulators, so that a
  tile may be multiplied while the one before it goes out.

All four go round in step because every warp of every CTA of a cluster walks the same turns and counts the same K-blocks
(also a CTA whose tile is beyond C: its loads give zeros, its stores go nowhere); loads taken in turn agree for the
same reason. No cycle of waits: loading waits for products alone, these for loads and for epilogues, these for products.

Tensor memory. Warp 0 of each CTA allocates before the first barrier of all, behind which all read the address, and
frees it behind the last one, when the four warps have loaded their last sums and (as these waited for `made`) no
product is on its way. Two CTAs allocate and free as one (cta_group::2), each by the same warp. An SM must not have room
for two CTAs: two that each wait for columns that a neighbour of the other holds would never end; `spare_bytes` see to
that.

End. Nobody may leave while another can still reach its shared memory. Copies into a stage have been waited for by
products (`full`); commits to `empty` by the loading warp, which at its end waits for every stage to be free; commits to
`made` by the four warps; arrivals at `read` are ordered before the cluster's last barrier, as their threads pass it.

Masks of CTAs are by their rank, rank_m + rank_n * cluster_m; `ctas` of them, neighbours along M, have a tile together:
pair number pair_m = rank_m // ctas, of which a CTA has the part half = rank_m % ctas. This file is arithmetic alone,
for numbers known when the kernel is compiled or when it runs.
"""

from __future__ import annotations


class Sharing:
    """Of clusters of cluster_m x cluster_n CTAs, `ctas` of which make a tile."""

    def __init__(self, cluster_m, cluster_n, ctas):
        self.cluster_m, self.cluster_n, self.ctas = cluster_m, cluster_n, ctas
        self.pairs_m = cluster_m // ctas

    def with_same_a(self, pair_m, half):
        """Those that need the rows of A that a CTA loads: of its row of the cluster, the ones of its half."""
        row = sum(1 << (place * self.cluster_m) for place in range(self.cluster_n))
        return row << (pair_m * self.ctas + half)

    def with_same_b(self, rank_n, half):
        """Those that need the columns of B that a CTA loads: of its column, the ones of its half."""
        column = sum(1 << (place * self.ctas) for place in range(self.pairs_m))
        return column << (rank_n * self.cluster_m + half)

    def loaders(self, pair_m, rank_n):
        """Those that load something for this pair: both CTAs of every pair of its row and of its column."""
        pair = (1 << self.ctas) - 1
        row = sum(pair << (place * self.cluster_m) for place in range(self.cluster_n))
        column = (1 << self.cluster_m) - 1
        return (row << (pair_m * self.ctas)) | (column << (rank_n * self.cluster_m))

    def pair_of(self, leader):
        """Both CTAs of a pair, or the one; `leader` is the rank of the first."""
        return ((1 << self.ctas) - 1) << leader

    @property
    def readers(self):
        """Pairs that read what one CTA loads, its own once: those of its row and of its column."""
        return self.pairs_m + self.cluster_n - 1

    @property
    def arrivals(self):
        """At `full`: of all CTAs that load something for a pair, or of the leader of the only one."""
        return self.ctas * self.readers if self.readers > 1 else 1
